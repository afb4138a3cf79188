"""ChatOrchestrate: a LangChain chat model on the engine of the current run or runtime."""

from orchestrator.langgraph.chat_model import ChatOrchestrate

__all__ = ["ChatOrchestrate"]
