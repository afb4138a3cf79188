"""Differences between states: shown, merged, and applied onto the base."""
