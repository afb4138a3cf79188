"""CALM, ours: admission by value density, then least slack."""
