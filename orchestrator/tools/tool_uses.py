"""Calls of tools that a model asks for: checked, executed side by side, their results as texts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.durability.values import ValueCodec
from orchestrator.errors import DeadlineExceeded, OrchestrateError, StepFailed, ToolFailed
from orchestrator.execution.context import current_context
from orchestrator.execution.recorded_values import record_value
from orchestrator.sdk.parallel import gather
from orchestrator.tools.functions import AgentTool, ArgumentsInvalid
from orchestrator.tools.results import result_text
from serving.errors import PromptTooLong, ServingError, StructuredOutputInvalid
from serving.generation import Message, ToolCall
from serving.model_json import arguments_of
from store.errors import StoreError

OnToolError = Literal["return", "raise"]

_ENDS_THE_AGENT = (OrchestrateError, ServingError, StoreError)
_OF_THE_TOOL = (DeadlineExceeded, StepFailed, ToolFailed, StructuredOutputInvalid, PromptTooLong)
"""Errors of these classes do not end an agent, although they are of _ENDS_THE_AGENT.

DeadlineExceeded is of a limit within the tool: one around the agent cancels the tool instead, and
nothing begins after it.
"""

_TEXT = ValueCodec("what a tool's error says", str)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that an agent's model asked for.

    Attributes:
        arguments: JSON text, as the model wrote it.
        result: the text that the model got.
        is_error: the result says why there is none: the call was not valid, or the tool failed.
    """

    id: str
    name: str
    arguments: str
    result: str
    is_error: bool = False

    def as_turn(self) -> Message:
        """The result as a turn of the chat."""
        return Message("tool", self.result, tool_call_id=self.id)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call with its tool and arguments; `fault` says why it cannot be executed, if so."""

    call: ToolCall
    tool: AgentTool | None = None
    arguments: Mapping[str, Any] | None = None
    fault: str = ""


def check_call(call: ToolCall, tools: Mapping[str, AgentTool]) -> CheckedCall:
    """A call as it can be executed, or what is wrong with it."""
    tool = tools.get(call.name)
    if tool is None:
        names = ", ".join(tools) or "none"
        return CheckedCall(call, fault=f"there is no tool {call.name!r}; the tools are: {names}")
    try:
        values = arguments_of(call.arguments)
    except ValueError as error:
        return CheckedCall(call, fault=f"the arguments of {call.name} are {error}")
    try:
        return CheckedCall(call, tool, tool.read(values))
    except ArgumentsInvalid as error:
        return CheckedCall(call, fault=f"the arguments of {call.name} are not valid: {error}")


async def use_tools(
    calls: Sequence[CheckedCall], *, on_error: OnToolError, max_characters: int
) -> tuple[ToolUse, ...]:
    """Execute calls side by side, but those that act in a workspace one after another.

    Each is recorded at its place among them, so that a resumed run repeats none that has ended.

    Returns:
        Their results in the calls' order.
    """
    acting = asyncio.Lock()  # taken in the order of the calls

    async def use(checked: CheckedCall) -> ToolUse:
        acts = checked.tool is not None and checked.tool.acts_in_workspace
        async with acting if acts else nullcontext():
            return await _use(checked, on_error, max_characters)

    return await gather(*map(use, calls))


async def _use(checked: CheckedCall, on_error: OnToolError, max_characters: int) -> ToolUse:
    call = checked.call
    if checked.tool is None or checked.arguments is None:
        return _failed(call, checked.fault, max_characters)
    try:
        result = await checked.tool.call(**checked.arguments)
    except Exception as error:
        if on_error == "raise" or _ends_the_agent(error):
            raise
        says = _says(error)
    else:
        return ToolUse(call.id, call.name, call.arguments, result_text(result, max_characters))
    # Recorded, since a resumed run may not be able to build an error of the same class.
    says = record_value(current_context("agent()"), "tool-error", _TEXT, lambda: says)
    return _failed(call, says, max_characters)


def _failed(call: ToolCall, reason: str, max_characters: int) -> ToolUse:
    text = result_text(f"Error: {reason}", max_characters)
    return ToolUse(call.id, call.name, call.arguments, text, is_error=True)


def _says(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, ToolFailed):
        return str(error.args[1])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _ends_the_agent(error: BaseException) -> bool:
    """Whether an error is not one of the tool itself: the model could do nothing about it."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_ends_the_agent, error.exceptions))
    return not isinstance(error, Exception) or (
        isinstance(error, _ENDS_THE_AGENT) and not isinstance(error, _OF_THE_TOOL)
    )
