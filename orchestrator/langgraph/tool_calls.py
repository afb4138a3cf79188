"""Tools of LangChain: as tools of a request, and an answer's calls as LangChain's."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall
from langchain_core.messages.tool import invalid_tool_call, tool_call

from orchestrator.tools.asking import ToolAnswer
from serving import generation
from serving.model_json import arguments_of


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


def _arguments(call: generation.ToolCall) -> tuple[dict[str, Any], str]:
    """The arguments, or what is wrong with them."""
    try:
        return arguments_of(call.arguments), ""
    except ValueError as error:
        return {}, f"the arguments are {error}"
