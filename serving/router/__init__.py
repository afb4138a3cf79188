"""Routing of requests to replicas: pure functions over snapshots of the replicas."""
