"""agent: a model that calls tools, round by round, until it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Literal, TypeVar, Unpack, overload

from orchestrator.durability.digests import digest_of
from orchestrator.durability.identity import checked_name
from orchestrator.durability.values import ValueCodec
from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.call_text import OnText
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.sdk.llm import ModelArguments
from orchestrator.sdk.prompts import Prompt, turns_of
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.tools.agent_loop import AgentLoop, Limits
from orchestrator.tools.agent_result import AgentResult
from orchestrator.tools.functions import AnyTool, agent_tools
from serving.generation import GenerationRequest, Message
from store.records import StepKind

T = TypeVar("T")

MAX_TOKENS = 2048
"""Most output tokens of an answer by default: a model may repeat itself without end."""

Until = Callable[[AgentResult[str]], bool | Awaitable[bool]]
"""Called after each round with the result so far; true ends the agent."""


class AgentArguments(ModelArguments, total=False):
    """Arguments of `agent` that do not change the type of what it returns."""

    max_rounds: int
    until: Until | None
    max_invalid: int
    on_tool_error: Literal["return", "raise"]
    max_result_characters: int | None
    name: str
    on_text: OnText | None


@overload
async def agent(
    prompt: Prompt,
    tools: Sequence[AnyTool] = ...,
    *,
    schema: None = None,
    **more: Unpack[AgentArguments],
) -> AgentResult[str]: ...


@overload
async def agent(
    prompt: Prompt,
    tools: Sequence[AnyTool] = ...,
    *,
    schema: type[T],
    **more: Unpack[AgentArguments],
) -> AgentResult[T]: ...


@overload
async def agent(
    prompt: Prompt,
    tools: Sequence[AnyTool] = ...,
    *,
    schema: object,
    **more: Unpack[AgentArguments],
) -> AgentResult[Any]: ...


async def agent(
    prompt: Prompt,
    tools: Sequence[AnyTool] = (),
    *,
    schema: object = None,
    system: str | None = None,
    max_rounds: int = 10,
    until: Until | None = None,
    max_invalid: int = 3,
    on_tool_error: Literal["return", "raise"] = "return",
    max_result_characters: int | None = None,
    name: str = "agent",
    engine: str | None = None,
    model: str | None = None,
    max_tokens: int | None = MAX_TOKENS,
    temperature: float = 0.7,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    on_text: OnText | None = None,
) -> Any:
    """Let the run's model call tools, round by round, until it answers without a call.

    A round is an answer of the model and its tool calls, which run side by side; those that act in
    a workspace, one after another. Each answer and each call is recorded: a resumed run repeats
    none that has ended. The agent itself is a step.

    A call that is not valid gets a text that says why as its result: an unknown tool, or arguments
    that do not fit. So does a call of a tool that raises an error; but errors of the run, the
    engine and the store, such as DeadlineExceeded, BudgetExceeded and OutcomeUnknown, end the
    agent, as cancellations do.

    Args:
        prompt: the user's message, or the turns of a chat, as in `llm`.
        tools: functions, async or plain, described to the model by signature and docstring; those
            decorated with @tool keep their effects, other functions have external ones. Also steps,
            flows, and tools of `mcp_tools`.
        schema: what the answer must be, as in `llm`.
        system: a system message before a plain prompt.
        max_rounds: most answers with tool calls. After them the model is asked to answer without
            tools, so that the work done so far is not lost.
        until: called after each round with the result so far; true ends the agent. It may depend on
            that alone, and may be async.
        max_invalid: most rounds in a row with a call that is not valid.
        on_tool_error: "raise": an error of a tool ends the agent.
        max_result_characters: longer results of tools are cut, and say so; None: 20,000, and all
            results together as many as the model's context has tokens.
        name: under which the step is recorded.
        engine, model: of all its LLM calls, as in `llm`.
        max_tokens: most output tokens of each answer; None: as many as the context window allows.
        temperature, top_p, top_k, min_p, repetition_penalty, frequency_penalty, presence_penalty,
            stop, seed: of sampling, as in `llm`.
        on_text: called with each piece of new text as it arrives, without tool calls.
    Raises:
        ToolCallsInvalid: more than `max_invalid` rounds in a row had a call that is not valid.
        StructuredOutputInvalid: the answer does not satisfy the schema, usually because it was cut
            off.
        ValueError: a tool cannot be described, two have one name, or a limit is out of range.
        And what `llm` raises.
    """
    context = current_context("agent()")
    form = None if schema is None else AnswerForm.of(schema)
    described = agent_tools(tools)
    turns = turns_of(prompt, system)
    assert not isinstance(turns, str), "a prompt of agent() is never raw"
    loop = AgentLoop(
        name,
        described,
        form,
        request=GenerationRequest(
            request_id="",
            prompt=turns,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            seed=seed,
        ),
        options=CallOptions(engine=engine, model=model),
        limits=Limits(max_rounds, max_invalid, max_result_characters),
        on_tool_error=on_tool_error,
        until=_awaited(until),
        on_text=on_text,
    )
    shape: Any = str if schema is None else Any if isinstance(schema, Mapping) else schema
    spec = StepSpec(
        checked_name(name),
        StepKind.STEP,
        ValueCodec(f"agent {name}", AgentResult[shape]),
        arguments=digest_of(turns, list(described), None if form is None else form.schema),
    )
    return await _recorded(context, spec, loop, turns, on_text)


async def _recorded(
    context: CallContext,
    spec: StepSpec,
    loop: AgentLoop,
    turns: tuple[Message, ...],
    on_text: OnText | None,
) -> AgentResult[Any]:
    has_begun = False

    async def work(here: CallContext) -> AgentResult[Any]:
        nonlocal has_begun
        has_begun = True
        with using_context(here):
            return await loop.run(turns)

    result = await run_step(context, spec, work)
    if not has_begun and on_text is not None:  # replayed as a whole
        for text in loop.shown_texts(result, len(turns)):
            on_text(text)
    return result


def _awaited(until: Until | None) -> Callable[[AgentResult[str]], Awaitable[bool]]:
    async def ends(so_far: AgentResult[str]) -> bool:
        if until is None:
            return False
        answer = until(so_far)
        return bool(await answer if isawaitable(answer) else answer)

    return ends
