"""The commands of queues: submit a run, work on runs, manage queues."""
