"""A chat with tools for a model that has no format for them: calls and results are texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.model_json import json_of
from serving.schema_bound import result_text, tool_call_text

Turn = Mapping[str, Any]
"""A message in the form of OpenAI's chat completions."""


def tools_as_text(messages: Sequence[Turn], instructions: str | None) -> list[Turn]:
    """The chat with tool calls in the assistant's texts, and their results as turns of the user.

    Images and other parts of a content stay where they are. Adjacent texts of one role become one
    turn: many chat templates want user and assistant in turns.

    Args:
        instructions: how to call which tools, put before the system message; None: no tools.
    Returns:
        the messages as they are, if there are no tools in them and no instructions.
    """
    if instructions is None and not any(map(_has_tools, messages)):
        return list(messages)
    names = {
        call.get("id"): call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    told = [] if instructions is None else [{"role": "system", "content": instructions}]
    turns: list[Turn] = []
    for turn in (*told, *(_without_tools(message, names) for message in messages)):
        last = turns[-1] if turns else None
        if last is not None and last["role"] == turn["role"] and _is_text(last) and _is_text(turn):
            turns[-1] = {**last, "content": f"{last['content']}\n\n{turn['content']}".strip()}
        else:
            turns.append(turn)
    return turns


def _has_tools(message: Turn) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _without_tools(message: Turn, names: Mapping[Any, str]) -> Turn:
    role, content = message["role"], _text_or_parts(message.get("content"))
    if role == "tool":
        result = result_text(names.get(message.get("tool_call_id"), ""), "")
        return {"role": "user", "content": _joined(result, content, between="")}
    calls = [
        tool_call_text(call["function"]["name"], _value(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    if calls:
        content = _joined(content, "\n".join(calls), between="\n")
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "role": "system" if role == "developer" else role, "content": content}


def _text_or_parts(content: Any) -> str | list[Any]:
    """A content as a text, if it has no other parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = list(content)
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    return "\n".join(texts) if all(isinstance(text, str) for text in texts) else parts


def _joined(first: str | list[Any], second: str | list[Any], *, between: str) -> str | list[Any]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}" if first else second
    both = (first, second)
    return [
        part
        for each in both
        for part in ([{"type": "text", "text": each}] if isinstance(each, str) else each)
    ]


def _value(arguments: Any) -> Any:
    """The arguments of a call, which clients send as JSON text; what is no JSON stays a text."""
    try:
        return json_of(arguments) if isinstance(arguments, str) else arguments or {}
    except ValueError:
        return arguments


def _is_text(turn: Turn) -> bool:
    return isinstance(turn["content"], str) and turn.keys() <= {"role", "content"}
