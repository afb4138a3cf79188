"""Which replica serves a request: pure functions over snapshots of the replicas."""
