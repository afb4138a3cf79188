"""The turns of a chat in OpenAI's form, which servers and chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from serving.generation import Message, ToolCall, ToolSpec
from serving.images import Image
from serving.model_json import arguments_of


def openai_turn(turn: Message) -> dict[str, Any]:
    """A turn as OpenAI's API has it; what the turn does not have is left out.

    Arguments that are no JSON object are left out: servers refuse a chat with them.
    """
    form: dict[str, Any] = {"role": turn.role, "content": _content(turn)}
    if turn.tool_calls:
        form["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object_text(call.arguments)},
            }
            for call in turn.tool_calls
        ]
    if turn.tool_call_id:
        form["tool_call_id"] = turn.tool_call_id
    return form


def template_turn(turn: Message) -> dict[str, Any]:
    """A turn as chat templates read it: like `openai_turn`, with arguments as objects."""
    form = openai_turn(turn)
    for call in form.get("tool_calls", ()):
        call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
    return form


def with_unique_ids(calls: Iterable[ToolCall], taken: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """The calls of an answer, each with an id of its own: models and servers may repeat ids.

    Args:
        taken: ids of the chat's calls so far: some servers count anew in each answer.
    """
    ids, unique = set(taken), []
    for call in calls:
        number, new_id = len(ids), call.id
        while not new_id or new_id in ids:
            new_id, number = f"call{number:05}", number + 1  # nine letters, as Mistral asks for
        ids.add(new_id)
        unique.append(replace(call, id=new_id))
    return tuple(unique)


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


def _object_text(arguments: str) -> str:
    """The JSON text of an object; of anything else that of an empty one."""
    try:
        value = arguments_of(arguments)
    except ValueError:
        return "{}"
    try:
        json.loads(arguments)
    except ValueError:  # with line ends in its texts, which servers do not read
        return json.dumps(value)
    return arguments
