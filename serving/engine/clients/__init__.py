"""Engines as callers see them: vLLM in this process, or a server far away."""
