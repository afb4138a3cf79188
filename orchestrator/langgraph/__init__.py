"""LangGraph integration: runs existing graphs as recorded runs with a deadline."""

from orchestrator.langgraph.attach import attach
from orchestrator.langgraph.plain_functions import run_blocking

__all__ = ["attach", "run_blocking"]
