"""A program that changes and lists folders; run as top-level package `operating`."""
