"""Runs that wait for a worker: their order, the limits of queues, and schedules."""
