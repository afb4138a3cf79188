"""ChatOrchestrate: a LangChain chat model over our engines."""

from orchestrator.langgraph.chat_model import ChatOrchestrate

__all__ = ["ChatOrchestrate"]
