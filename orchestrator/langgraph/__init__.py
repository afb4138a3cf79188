"""LangGraph integration: runs existing graphs as recorded runs with a deadline."""

from orchestrator.langgraph.attach import attach

__all__ = ["attach"]
