"""Prompts: a text, or the turns of a chat, also in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from serving.generation import Message, Role, ToolCall
from serving.images import Image

Prompt = str | Sequence[Message | Mapping[str, Any]]

_ROLES: tuple[Role, ...] = get_args(Role)
_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def turns_of(prompt: Prompt, system: str | None, raw: bool = False) -> str | tuple[Message, ...]:
    """A prompt as an engine takes it; raises ValueError for what is no text and no turns."""
    if not isinstance(prompt, str):
        if not isinstance(prompt, Sequence) or not prompt:
            raise ValueError(f"a prompt is a text, or turns of a chat, not {prompt!r:.80}")
        return tuple(turn if isinstance(turn, Message) else _message(turn) for turn in prompt)
    if raw:
        return prompt
    before = (Message("system", system),) if system else ()
    return (*before, Message("user", prompt))


def _message(turn: object) -> Message:
    """A turn of OpenAI's form; members that are None or empty lists count as absent."""
    if not isinstance(turn, Mapping):
        raise ValueError(f"a prompt is a text, or Messages and dicts, not a list with {turn!r:.80}")
    given = {key: value for key, value in turn.items() if value is not None and value != []}
    if unknown := given.keys() - _FIELDS:
        names = ", ".join(sorted(map(str, unknown)))
        raise ValueError(
            f"a turn has a role and a content; nothing reads its {names}: {turn!r:.80}"
        )
    role = _role(turn)
    calls = tuple(_tool_call(call) for call in _list(given, "tool_calls"))
    call_id = given.get("tool_call_id", "")
    if calls and role != "assistant":
        raise ValueError(f"tool_calls are of an assistant's turn, not of one of {role}")
    if (role == "tool") != (isinstance(call_id, str) and bool(call_id)):
        raise ValueError(f"a turn of role tool, and no other, has a tool_call_id: {turn!r:.80}")
    if "content" not in given and not calls and turn.get("content") != []:
        raise ValueError(
            f"a turn has a role and a content, a text or a list of parts: {turn!r:.80}"
        )
    return Message(role, _content(given.get("content", "")), calls, call_id)


def _role(turn: Mapping[str, Any]) -> Role:
    role = "system" if turn.get("role") == "developer" else turn.get("role")
    known = next((each for each in _ROLES if each == role), None)
    if known is None:
        roles = ", ".join((*_ROLES, "developer"))
        raise ValueError(f"a turn has a role ({roles}) and a content: {turn!r:.80}")
    return known


def _content(content: object) -> str | tuple[str | Image, ...]:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(f"a turn's content is a text or a list of parts, not {content!r:.80}")
    return tuple(_part(part) for part in content)


def _part(part: object) -> str | Image:
    if isinstance(part, str | Image):
        return part
    match part:
        case {"type": "text", "text": str(text), **others} if not others:
            return text
        case {"type": "image_url", "image_url": {"url": str(url), **others}} if others.get(
            "detail", "auto"
        ) == "auto" and others.keys() <= {"detail"}:
            return Image(url)
        case {"type": "image_url", "image_url": str(url)}:
            return Image(url)
    raise ValueError(
        f"a part of a content is a text, an Image, {{'type': 'text', 'text': ...}} or {{'type':"
        f" 'image_url', 'image_url': {{'url': ...}}}}, not {part!r:.80}"
    )


def _tool_call(call: object) -> ToolCall:
    match call:
        case ToolCall():
            return call
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(call_id, name, arguments)
    raise ValueError(
        f"a tool call has an id and a function with a name and arguments (JSON text): {call!r:.80}"
    )


def _list(given: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = given.get(name, ())
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} of a turn is a list, not {value!r:.80}")
    return value
