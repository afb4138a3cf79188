"""LangGraph's usual agents with tools, over any chat model.

A random model calls a tool by chance. So each agent must call one of its tools, and then answer:
both by `tool_choice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, create_react_agent
from langgraph.types import Command

from tests.engine.agent_graphs import weather


def react(model: BaseChatModel, tools: Sequence[BaseTool] = (weather,), name: str = "agent") -> Any:
    """LangGraph's ReAct agent: a call of a tool, and an answer."""
    names = [each.name for each in tools]

    def choose(state: Any, _: Any) -> Any:
        return model.bind_tools(tools, tool_choice=_choice(state["messages"], names))

    return create_react_agent(choose, list(tools), name=name)


def langchain_agent(model: BaseChatModel) -> Any:
    """LangChain's agent: a call of a tool, and an answer."""

    @wrap_model_call
    async def choose(request: Any, handler: Any) -> Any:
        choice = _choice(request.messages, [weather.name])
        return await handler(request.override(tool_choice=choice))

    return create_agent(model, [weather], middleware=[choose])


def handoff_supervisor(model: BaseChatModel) -> Any:
    """A supervisor as langgraph-supervisor makes it: a ReAct agent which hands over by a tool."""
    workers = ("forecaster", "reporter")
    supervisor = react(model, [_handoff(worker) for worker in workers], "supervisor")
    builder = StateGraph(MessagesState)
    builder.add_node("supervisor", supervisor, destinations=workers)
    for worker in workers:
        builder.add_node(worker, react(model, name=worker))
        builder.add_edge(worker, "supervisor")
    builder.add_edge(START, "supervisor")
    return builder.compile()


def _handoff(worker: str) -> BaseTool:
    @tool(f"transfer_to_{worker}", description=f"Ask the {worker}.")
    def transfer(
        state: Annotated[Any, InjectedState], call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[str]:
        done = ToolMessage("transferred", tool_call_id=call_id, name=f"transfer_to_{worker}")
        update = {"messages": [*state["messages"], done]}
        return Command(goto=worker, graph=Command.PARENT, update=update)

    return transfer


def _choice(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """A tool must be called until one was, and then none may be."""
    has_result = any(isinstance(each, ToolMessage) and each.name in tools for each in messages)
    return "none" if has_result else "required"
