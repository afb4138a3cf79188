"""What the scheduler measures while it runs: loads, lengths, step costs."""
