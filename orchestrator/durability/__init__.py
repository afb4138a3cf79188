"""What a run records and how it is read back: journal, replay, errors, leases."""
