"""Stored states: what identifies one, where they are kept, and the graph that they form."""
