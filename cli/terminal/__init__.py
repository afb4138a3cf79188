"""The terminal: output, progress, signals, and text that is safe to print."""
