"""Scripts of models that call tools, natively or in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator import Message, ToolCall
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest

Said = str | Message


def call(name: str, call_id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def asks(*calls: ToolCall, text: str = "") -> Message:
    """An answer with tool calls."""
    return Message("assistant", text, tool_calls=calls)


def saying(answers: Sequence[Said]) -> Callable[[GenerationRequest], Said]:
    """A script that gives these answers one after another."""
    left = list(answers)
    return lambda _: left.pop(0)


def native(*answers: Said) -> ScriptedEngine:
    """A model with a format of its own for tool calls."""
    return ScriptedEngine(saying(answers), tool_parser="hermes")


def in_json(*answers: Any) -> ScriptedEngine:
    """A model without one; each answer is a text, or what it writes as JSON."""
    return ScriptedEngine(
        saying([each if isinstance(each, str) else json.dumps(each) for each in answers])
    )


def turns(request: GenerationRequest) -> tuple[Message, ...]:
    assert not isinstance(request.prompt, str)
    return request.prompt


def results(request: GenerationRequest) -> list[str]:
    """The results of tools in a request's chat."""
    return [turn.text for turn in turns(request) if turn.role == "tool"]
