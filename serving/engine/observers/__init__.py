"""What the scheduler measures while it runs: arrivals, output lengths, durations of steps."""
