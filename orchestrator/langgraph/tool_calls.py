"""Tools of LangChain: as tools of a request, and an answer's calls as LangChain's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall
from langchain_core.messages.tool import invalid_tool_call, tool_call

from orchestrator.tools.asking import ToolAnswer
from orchestrator.tools.schema_bound import ToolProtocol
from serving import generation
from serving.errors import InvalidRequest
from serving.generation import ToolSpec
from serving.model_json import arguments_of


def protocol_of(tools: Sequence[Mapping[str, Any]], choice: Any = None) -> ToolProtocol | None:
    """The protocol for OpenAI's `tools` and `tool_choice`; None if no tool may be called.

    Args:
        choice: "auto" or None; "any", "required" or True; "none"; a tool's name, or
            {"type": "function", "function": {"name": ...}}.
    Raises:
        InvalidRequest: it names none of the tools.
    """
    specs = [_spec_of(tool["function"]) for tool in tools]
    if not specs or choice == "none":
        return None
    if choice in (None, False, "auto"):
        return ToolProtocol(specs)
    if choice in (True, "any", "required"):
        return ToolProtocol(specs, must_call=True)
    name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    chosen = [spec for spec in specs if spec.name == name]
    if not chosen:
        raise InvalidRequest("chat", f"tool_choice={name!r} names none of the tools")
    return ToolProtocol(chosen, must_call=True)


def reply_of(answer: ToolAnswer) -> AIMessage:
    """An answer as a message; a call with arguments that are no JSON object is an invalid one."""
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in answer.calls:
        arguments, fault = _arguments(call)
        if fault:
            invalid.append(
                invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=fault)
            )
        else:
            calls.append(tool_call(name=call.name, args=arguments, id=call.id))
    return AIMessage(answer.text, tool_calls=calls, invalid_tool_calls=invalid)


def calls_of(message: AIMessage) -> tuple[generation.ToolCall, ...]:
    """The tool calls of a message, as turns of a chat have them."""
    return tuple(
        generation.ToolCall(
            call["id"] or f"call{number:05}", call["name"], json.dumps(call["args"], default=str)
        )
        for number, call in enumerate(message.tool_calls)
    )


def _spec_of(function: Mapping[str, Any]) -> ToolSpec:
    description = str(function.get("description") or "")
    return ToolSpec(function["name"], description, function.get("parameters") or {})


def _arguments(call: generation.ToolCall) -> tuple[dict[str, Any], str]:
    """The arguments, or what is wrong with them."""
    try:
        return arguments_of(call.arguments), ""
    except ValueError as error:
        return {}, f"the arguments are {error}"
