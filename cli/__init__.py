"""The `orchestrate` command."""
