"""One step or call of a run: where it stands, whether it is replayed, its deadline, its outcome."""
