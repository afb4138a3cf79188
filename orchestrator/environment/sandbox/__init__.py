"""The processes of sandboxes. Only the standard library: they are forked from a small process."""
