"""What an agent returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from orchestrator.tools.tool_uses import ToolUse
from serving.generation import Message, Usage

T = TypeVar("T")

Ended = Literal["answer", "until", "max_rounds"]
"""Why an agent ended: the model answered without a call, `until` was true, or it had used up its
rounds and was asked to answer without tools."""


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """What an agent returns.

    Attributes:
        value: the model's last text; with a schema a value of it.
        turns: the whole chat: the prompt's turns, the model's, and the tools' results.
        rounds: answers of the model that had tool calls.
        calls: what the model asked for, in order.
        usage: tokens of all its LLM calls together.
    """

    value: T
    turns: tuple[Message, ...]
    rounds: int
    calls: tuple[ToolUse, ...]
    usage: Usage
    ended: Ended = "answer"
