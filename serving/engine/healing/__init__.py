"""What heals a dead engine, in a server and inside a process: limits and repeated requests."""
