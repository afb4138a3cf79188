"""Reads what commands show from a store; never creates one."""
