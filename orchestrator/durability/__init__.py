"""The durable record of a run and how it is read back: journal, replay, errors, leases."""
