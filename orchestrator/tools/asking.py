"""Asks a model with tools: in its own format where its engine reads that, else in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.execution.call_text import OnText
from serving.errors import ToolsNotSupported
from serving.generation import Completion, GenerationRequest, ToolCall
from serving.schema_bound import AnswerText, ToolProtocol

Send = Callable[[GenerationRequest, OnText | None], Awaitable[Completion]]
"""Submits a request; its second argument is called with each piece of the answer's text."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A request with tools, in both forms.

    Attributes:
        native: with tools, for a model that has a format of its own; None: it cannot be asked so.
        schema_bound: with the protocol's instructions and schema.
    """

    protocol: ToolProtocol
    schema_bound: GenerationRequest
    native: GenerationRequest | None = None


class ToolAnswer(NamedTuple):
    """An answer to a request with tools.

    Attributes:
        text: beside the calls.
        is_native: whether it was asked for in the model's own format.
    """

    completion: Completion
    text: str
    calls: tuple[ToolCall, ...]
    is_native: bool


async def ask_with_tools(
    request: ToolRequest, send: Send, *, is_native: bool, on_text: OnText | None = None
) -> ToolAnswer:
    """Ask a model with tools.

    Args:
        is_native: whether its engine is thought to read its own format. If it turns out that it
            does not, it is asked again, in JSON.
        on_text: called with each piece of new text, without tool calls.
    Raises what `send` raises.
    """
    if is_native and request.native is not None:
        try:
            completion = await send(request.native, on_text)
        except ToolsNotSupported:
            pass  # the engine has warned
        else:
            return ToolAnswer(completion, completion.text, completion.tool_calls, True)
    shown = None if on_text is None else _AnswerOnly(on_text)
    completion = await send(request.schema_bound, shown)
    text, calls = request.protocol.read(completion.text, f"call-{completion.request_id}")
    if shown is not None:
        shown.end(text)
    return ToolAnswer(completion, text, calls, False)


class _AnswerOnly:
    """Passes on the text of an answer in JSON as it grows."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._answer = AnswerText()

    def __call__(self, piece: str) -> None:
        if text := self._answer.feed(piece):
            self._on_text(text)

    def end(self, text: str) -> None:
        """Pass on what the pieces did not show."""
        if rest := self._answer.rest(text):
            self._on_text(rest)
