"""A request's JSON body -> what an analyzer is told about it: hashes and counts, never its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from serving.analyzer.messages import Arrival
from serving.analyzer.words import count_words, estimate_prompt_tokens

MAX_LINKS = 32
"""Newest links that are sent: a continued prompt is that of a former call and a few pieces more."""

PIECE_CHARACTERS = 64
PIECE_TOKENS = 16
"""The pieces of a prompt that has no messages; a part at its end is in no piece."""

SHAPE_CHARACTERS = 128
"""Characters of the instructions that count for the shape: later ones may be of the call alone."""

MAX_NAME_CHARACTERS = 256
"""Longer names of users, models and answers are sent as their hash."""

_SYSTEM = frozenset({"system", "developer"})
_SCHEMAS = ("response_format", "structured_outputs", "text")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MANY = ("n", "best_of")


class _Prompt(NamedTuple):
    """The parts of a prompt: its pieces in order, its instructions, and all of its text."""

    pieces: Sequence[str]
    instructions: str
    text: str


def arrival_of(
    body: Mapping[str, Any],
    *,
    call: str,
    at_s: float,
    user: str = "",
    program: str = "",
    program_deadline_s: float | None = None,
    final_s: float | None = None,
) -> Arrival | None:
    """The arrival of a request; None of one that is not analyzed, such as one of several answers.

    Beam search is not: the engine sees one request for each token.

    Args:
        user: of its key or its tags; "": the body's `user`.
        program, program_deadline_s, final_s: as its headers and tags say (`Arrival`).
    """
    prompt = _prompt_of(body)
    is_single = all(body.get(name) in (None, 1) for name in _MANY)
    if prompt is None or not is_single or body.get("background") or body.get("use_beam_search"):
        return None
    end_user = _short(body.get("user"))
    limits = [_whole(body.get(name)) for name in _LIMITS]
    return Arrival(
        call=call,
        at_s=at_s,
        model=_short(body.get("model")),
        user=_short(user) or end_user,
        end_user=end_user,
        shape=_shape(body, prompt.instructions),
        links=tuple(_chain(prompt.pieces))[-MAX_LINKS:],
        previous=_short(body.get("previous_response_id")),
        program=program,
        program_deadline_s=program_deadline_s,
        final_s=final_s,
        prompt_tokens=estimate_prompt_tokens(prompt.text),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        temperature=_number(body.get("temperature"), 1.0),
        top_p=_number(body.get("top_p"), 1.0),
        structured=any(body.get(name) for name in _SCHEMAS),
        words=count_words(prompt.text).hex(),
    )


def _prompt_of(body: Mapping[str, Any]) -> _Prompt | None:
    for name in ("messages", "input", "prompt"):
        content = body.get(name)
        if isinstance(content, str):
            return _of_text(content, str(body.get("instructions") or ""))
        if isinstance(content, list) and content:
            if all(isinstance(each, Mapping) for each in content):
                return _of_messages(content, str(body.get("instructions") or ""))
            if all(type(each) is int for each in content):
                return _of_tokens(content)
    return None


def _of_messages(messages: Sequence[Mapping[str, Any]], instructions: str) -> _Prompt:
    """Each message is a piece; the instructions are those of the system."""
    texts = [_text(message) for message in messages]
    roles = [message.get("role") for message in messages]
    of_system = [text for text, role in zip(texts, roles, strict=True) if role in _SYSTEM]
    pieces = [f"{role}:{text}" for text, role in zip(texts, roles, strict=True)]
    said = "\n".join([instructions, *of_system])
    return _Prompt(pieces, said, "\n".join([instructions, *texts]))


def _of_text(text: str, instructions: str) -> _Prompt:
    count = len(text) // PIECE_CHARACTERS
    pieces = [text[i * PIECE_CHARACTERS : (i + 1) * PIECE_CHARACTERS] for i in range(count)]
    return _Prompt(pieces, instructions or text[:PIECE_CHARACTERS], f"{instructions}\n{text}")


def _of_tokens(tokens: Sequence[int]) -> _Prompt:
    count = len(tokens) // PIECE_TOKENS
    pieces = [str(tokens[i * PIECE_TOKENS : (i + 1) * PIECE_TOKENS]) for i in range(count)]
    # As many bytes as so many tokens of ordinary text have.
    return _Prompt(pieces, str(tokens[:PIECE_TOKENS]), " ".join(f"{each:03x}" for each in tokens))


def _text(message: Mapping[str, Any]) -> str:
    """The text of a message, of its parts, of its tool calls."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (each.get("text") or "" for each in content if isinstance(each, Mapping))
        content = "\n".join(map(str, parts))
    calls = message.get("tool_calls") or message.get("arguments") or message.get("output")
    return f"{content or ''}{json.dumps(calls) if calls else ''}"


def _shape(body: Mapping[str, Any], instructions: str) -> str:
    """A hash of what the calls of a step have in common: instructions, tools, schema.

    Digits do not count: many instructions contain a date.
    """
    tools = body.get("tools")
    names = [_tool_name(tool) for tool in tools] if isinstance(tools, list) else []
    schemas = [body[name] for name in _SCHEMAS if body.get(name)]
    said = re.sub(r"\d+", "0", instructions.strip()[:SHAPE_CHARACTERS])
    return _hash(json.dumps([said, names, schemas], sort_keys=True, default=str))


def _tool_name(tool: object) -> str:
    if not isinstance(tool, Mapping):
        return ""
    function = tool.get("function")
    named = function if isinstance(function, Mapping) else tool
    return str(named.get("name") or tool.get("type") or "")


def _chain(pieces: Iterable[str]) -> Iterable[str]:
    link = ""
    for piece in pieces:
        link = _hash(f"{link}{piece}")
        yield link


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _short(name: object) -> str:
    """A name of limited length; "" for anything but text."""
    if not isinstance(name, str):
        return ""
    return name if len(name) <= MAX_NAME_CHARACTERS else _hash(name)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def _number(value: object, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1000 else default  # type: ignore[arg-type, operator]
