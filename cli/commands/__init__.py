"""The commands of `orchestrate`: one module each, with its options."""
