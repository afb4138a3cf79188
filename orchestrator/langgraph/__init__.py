"""LangGraph: a deadline, a record and a graceful end for graphs that we did not write."""

from orchestrator.langgraph.attach import attach

__all__ = ["attach"]
