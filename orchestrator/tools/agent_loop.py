"""The loop of an agent: an answer of the model, its tool calls, their results, and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.errors import ToolCallsInvalid
from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.call_text import OnText
from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.model_info import ModelInfo, model_info
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.tools.agent_result import AgentResult, Ended
from orchestrator.tools.asking import ToolAnswer, ToolRequest, ask_with_tools
from orchestrator.tools.functions import AgentTool
from orchestrator.tools.results import default_limit
from orchestrator.tools.tool_uses import OnToolError, ToolUse, check_call, use_tools
from serving.engine.clients.chat_turns import with_unique_ids
from serving.generation import (
    Completion,
    GenerationRequest,
    Message,
    ToolCall,
    Usage,
    check_request,
)
from serving.schema_bound import ToolProtocol, bounds_for

LAST_REQUEST = "You have no more tool calls. Give your final answer now."
JSON_REQUEST = "Give your final answer as JSON."


class Limits(NamedTuple):
    """Limits of an agent.

    Attributes:
        result_characters: None: by the model's context.
    Raises (check):
        ValueError: one is out of range.
    """

    rounds: int
    invalid: int
    result_characters: int | None

    def check(self) -> None:
        """Raise ValueError for a limit that is out of range."""
        least = {"max_rounds": (self.rounds, 1), "max_invalid": (self.invalid, 0)}
        if self.result_characters is not None:
            least["max_result_characters"] = (self.result_characters, 1)
        for name, (value, minimum) in least.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from {minimum}")


@dataclass(slots=True)
class _Progress:
    """The chat so far."""

    turns: list[Message]
    calls: list[ToolUse] = field(default_factory=list)
    rounds: int = 0
    rounds_invalid: int = 0  # in a row
    usage: Usage = field(default_factory=lambda: Usage(0, 0))

    def result(self, value: Any, ended: Ended) -> AgentResult[Any]:
        return AgentResult(
            value, tuple(self.turns), self.rounds, tuple(self.calls), self.usage, ended
        )


class AgentLoop:
    """Runs one agent.

    Args:
        name: for errors.
        form: of the answer; None: a text.
        request: with the sampling parameters of all its calls.
        options: the engine of all its calls.
    Raises:
        ValueError: a limit is out of range, or `on_tool_error` is unknown.
        InvalidRequest: a sampling parameter is out of range.
    """

    def __init__(
        self,
        name: str,
        tools: Mapping[str, AgentTool],
        form: AnswerForm | None,
        *,
        request: GenerationRequest,
        options: CallOptions,
        limits: Limits,
        on_tool_error: OnToolError,
        until: Callable[[AgentResult[str]], Awaitable[bool]],
        on_text: OnText | None,
    ) -> None:
        limits.check()
        if on_tool_error not in ("return", "raise"):
            raise ValueError(f"on_tool_error is {on_tool_error!r}; it must be 'return' or 'raise'")
        check_request(replace(request, request_id=f"{name}()"))
        self._name = name
        self._tools = tools
        self._form = form
        self._request = request
        self._options = options
        self._limits = limits
        self._on_tool_error = on_tool_error
        self._until = until
        self._on_text = on_text

    async def run(self, turns: tuple[Message, ...]) -> AgentResult[Any]:
        """The agent's result; its LLM calls and tool calls are recorded in the current context."""
        model = await model_info(self._options.engine, model=self._options.model)
        chat = _Chat(
            self._request,
            self._options,
            self._protocol(model),
            is_native=bool(model.tool_parser),
            on_text=self._on_text,
        )
        so_far = _Progress(list(turns))
        if not self._tools and self._form is not None:
            return await self._result(chat, so_far, None, "answer")
        while so_far.rounds < self._limits.rounds:
            answer = await self._ask(chat, so_far)
            if not answer.calls:
                return await self._result(chat, so_far, answer, "answer")
            await self._use_tools(so_far, answer.calls, model.context_tokens)
            if await self._until(so_far.result(answer.text, "until")):
                return await self._result(chat, so_far, answer, "until")
        so_far.turns.append(Message("user", LAST_REQUEST))
        answer = await self._ask(chat, so_far, must_answer=True)
        return await self._result(chat, so_far, answer, "max_rounds")

    def shown_texts(self, result: AgentResult[Any], num_given: int) -> list[str]:
        """The texts of the model that `on_text` got, one for each answer that has one.

        Args:
            num_given: turns of the prompt.
        """
        turns = result.turns[num_given:]
        if self._form is not None:
            was_asked = len(turns) > 1 and turns[-2] == Message("user", JSON_REQUEST)
            if was_asked or not self._tools:
                turns = turns[:-1]  # the JSON of `_Chat.ask_for`
        return [turn.text for turn in turns if turn.role == "assistant" and turn.text]

    def _protocol(self, model: ModelInfo) -> ToolProtocol:
        bounds = bounds_for(random_weights=model.random_weights, parameters=model.parameters)
        return ToolProtocol(
            [tool.spec for tool in self._tools.values()],
            answer=None if self._form is None else self._form.schema,
            bounds=bounds,
        )

    async def _ask(
        self, chat: _Chat, so_far: _Progress, *, must_answer: bool = False
    ) -> ToolAnswer:
        answer = await chat.ask(so_far.turns, must_answer=must_answer)
        so_far.usage = _sum(so_far.usage, answer.completion.usage)
        calls = with_unique_ids(answer.calls, taken=[use.id for use in so_far.calls])
        so_far.turns.append(Message("assistant", answer.text, tool_calls=calls))
        return answer._replace(calls=calls)

    async def _use_tools(
        self, so_far: _Progress, calls: tuple[ToolCall, ...], context_tokens: int | None
    ) -> None:
        checked = [check_call(call, self._tools) for call in calls]
        faults = [each.fault for each in checked if each.fault]
        so_far.rounds += 1
        so_far.rounds_invalid = so_far.rounds_invalid + 1 if faults else 0
        if so_far.rounds_invalid > self._limits.invalid:
            raise ToolCallsInvalid(self._name, so_far.rounds_invalid, faults[-1])
        limit = self._limits.result_characters or default_limit(
            context_tokens,
            used_characters=sum(len(use.result) for use in so_far.calls),
            num_results=len(calls),
        )
        uses = await use_tools(checked, on_error=self._on_tool_error, max_characters=limit)
        so_far.calls += uses
        so_far.turns += [use.as_turn() for use in uses]

    async def _result(
        self, chat: _Chat, so_far: _Progress, answer: ToolAnswer | None, ended: Ended
    ) -> AgentResult[Any]:
        """The result at the end of the chat; a value of the schema is asked for if need be."""
        if self._form is None:
            assert answer is not None, "a text needs no other answer"
            return so_far.result(answer.text, ended)
        if answer is None or answer.is_native or answer.calls:
            if answer is not None:
                so_far.turns.append(Message("user", JSON_REQUEST))
            answer = await chat.ask_for(self._form, so_far.turns)
            so_far.usage = _sum(so_far.usage, answer.completion.usage)
            so_far.turns.append(Message("assistant", answer.text))
        completion = replace(answer.completion, text=answer.text)
        return so_far.result(self._form.value_in(completion), ended)


class _Chat:
    """Asks the model, in one form for the whole chat: JSON, once the engine has refused tools."""

    def __init__(
        self,
        request: GenerationRequest,
        options: CallOptions,
        protocol: ToolProtocol,
        *,
        is_native: bool,
        on_text: OnText | None,
    ) -> None:
        self._request = request
        self._options = options
        self._protocol = protocol
        # Without tools there is nothing to call: an answer is a plain one, or one with a schema.
        self._is_native = is_native or not protocol.tools
        self._on_text = on_text

    async def ask(
        self, turns: list[Message], *, must_answer: bool, is_shown: bool = True
    ) -> ToolAnswer:
        """The model's next answer."""
        protocol = replace(self._protocol, must_answer=must_answer)
        tools = () if must_answer else tuple(protocol.tools)
        request = ToolRequest(
            protocol,
            replace(self._request, prompt=protocol.turns(turns), schema=protocol.schema()),
            replace(self._request, prompt=tuple(turns), tools=tools),
        )
        on_text = self._on_text if is_shown else None
        answer = await ask_with_tools(
            request, self._send, is_native=self._is_native, on_text=on_text
        )
        self._is_native = answer.is_native
        return answer

    async def ask_for(self, form: AnswerForm, turns: list[Message]) -> ToolAnswer:
        """An answer in JSON, which is not shown."""
        if not self._is_native:
            return await self.ask(turns, must_answer=True, is_shown=False)
        request = replace(self._request, prompt=tuple(turns), schema=form.schema)
        completion = await self._send(request, None)
        return ToolAnswer(completion, completion.text, (), True)

    async def _send(self, request: GenerationRequest, on_text: OnText | None) -> Completion:
        return await run_llm_call(current_context("agent()"), request, on_text, self._options)


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(
        first.prompt_tokens + second.prompt_tokens,
        first.output_tokens + second.output_tokens,
        first.cached_tokens + second.cached_tokens,
    )
