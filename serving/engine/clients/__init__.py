"""Implementations of Engine: vLLM in this process, or a server reached over HTTP."""
