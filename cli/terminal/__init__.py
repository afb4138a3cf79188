"""The terminal: output, progress, signals, safe text."""
