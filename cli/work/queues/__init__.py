"""What the commands of queues do: submit, work, list."""
