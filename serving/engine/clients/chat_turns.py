"""The turns of a chat in OpenAI's form, which servers and chat templates read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.generation import Message, ToolSpec
from serving.images import Image


def openai_turn(turn: Message) -> dict[str, Any]:
    """A turn as OpenAI's API has it; what the turn does not have is left out."""
    form: dict[str, Any] = {"role": turn.role, "content": _content(turn)}
    if turn.tool_calls:
        form["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.tool_calls
        ]
    if turn.tool_call_id:
        form["tool_call_id"] = turn.tool_call_id
    return form


def openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool as OpenAI's API has it."""
    function: Mapping[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _content(turn: Message) -> str | list[dict[str, Any]]:
    if isinstance(turn.content, str) or not turn.has_images:
        return turn.text  # many chat templates read no lists
    return [_part(part) for part in turn.content]


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": part.url}}
