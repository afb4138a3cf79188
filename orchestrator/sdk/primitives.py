"""What flow code calls: llm, gather, map, within, remaining."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from orchestrator.cancellation import first_failure
from orchestrator.durability.values import ValueCodec
from orchestrator.durations import seconds_of
from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.causality import frontier, own_task
from orchestrator.execution.context import (
    CallContext,
    current_context,
    current_worker,
    using_context,
)
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from orchestrator.execution.step_execution import begin_gather, record_value
from orchestrator.sdk.schemas import Shape, answer_in, json_schema_of
from serving.generation import GenerationRequest, Message

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

SECONDS = ValueCodec("a time", float)

Prompt = str | Sequence[Message]
OnText = Callable[[str], None]


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[M],
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> M: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> str: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: Mapping[str, Any],
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> Any: ...


async def llm(
    prompt: Prompt,
    *,
    schema: Shape | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> Any:
    """Ask the run's model, under the sub-deadline of the stage that this call belongs to.

    Args:
        prompt: what the user says, or the turns of a chat.
        schema: a pydantic model, or a JSON schema, that the answer must satisfy.
        system: a system message before a plain prompt.
        max_tokens: most output tokens; None: what the context leaves.
        raw: complete a plain prompt as it stands, without the model's chat template.
        on_text: called with each piece of new text as it comes.
    Returns:
        The text; with a pydantic model an instance of it; with a JSON schema its JSON value.
    Raises:
        StructuredOutputInvalid: the answer does not satisfy the schema, mostly as it was cut.
        DeadlineExceeded: the deadline here passed first.
        ServingError: the engine could not answer; see serving.errors.
        OutsideRun: not within a flow.
    """
    completion = await run_llm_call(
        current_context("llm()"),
        GenerationRequest(
            request_id="",
            prompt=_turns(prompt, system, raw),
            schema=json_schema_of(schema),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        ),
        on_text,
    )
    return completion.text if schema is None else answer_in(schema, completion)


@overload
async def gather(first: Awaitable[T1], second: Awaitable[T2], /) -> tuple[T1, T2]: ...


@overload
async def gather(
    first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], /
) -> tuple[T1, T2, T3]: ...


@overload
async def gather(*branches: Awaitable[T]) -> tuple[T, ...]: ...


async def gather(*branches: Awaitable[Any]) -> tuple[Any, ...]:
    """Run branches side by side and return their results in the order given.

    If one fails the others are cancelled and its error is raised, once all have ended. What
    follows depends on the calls of every branch.
    """
    try:
        context = begin_gather(current_context("gather()"), len(branches))
        scopes = context.step_path.branches(len(branches))
        before = frontier()
        ends: list[frozenset[int]] = []

        async def run(branch: Awaitable[Any], here: CallContext) -> Any:
            own_task(before)
            try:
                with using_context(here.derive(owner=current_worker())):
                    value = await branch
                here.run.recorded_steps.ended(here.step_path)
                return value
            finally:
                ends.append(frontier())

        tasks = [
            asyncio.create_task(
                run(branch, context.derive(step_path=step_path, stage_calls=len(scopes)))
            )
            for branch, step_path in zip(branches, scopes, strict=True)
        ]
        try:
            failure = await first_failure(tasks)
        finally:
            context.run.causality.join(ends)
    finally:
        for branch in branches:
            _discard(branch)
    if failure is not None:
        raise failure
    return tuple(task.result() for task in tasks)


async def map(  # noqa: A001 - what it is everywhere else
    work: Callable[[T1], Awaitable[T]], items: Iterable[T1], /, *, concurrency: int = 16
) -> tuple[T, ...]:
    """Do the same work for every item, so many at once, and return the results in their order.

    If one fails the others are cancelled and its error is raised, once all have ended.

    Args:
        concurrency: at least 1; the engine decides for itself how many of the calls run at once.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
    places = asyncio.Semaphore(concurrency)

    async def one(item: T1) -> T:
        await places.acquire()
        try:
            result = await work(item)
        except asyncio.CancelledError:
            places.release()
            raise
        places.release()  # not where it failed: that ends the others, and no more are to begin
        return result

    given = tuple(items)  # first: items that fail to come must leave no coroutine behind
    return await gather(*[one(item) for item in given])


@asynccontextmanager
async def within(duration: str | float) -> AsyncIterator[None]:
    """Shorten the deadline for a block, and cancel what is not done by then.

    The deadline around the block still holds: a longer duration changes nothing. A shorter one is
    a promise of its own: the engine is asked to end this block's calls by then, and not the run.

    Raises:
        DeadlineExceeded: the block's own limit passed, or the one around it has already.
        InvalidDuration: not a duration.
    """
    context = current_context("within()")
    run = context.run
    here = context.step_path.text or run.flow

    # A share of what remains may be 0 by now, and is no wrong duration.
    allowed_s = 0.0 if context.remaining_s() <= 0 else seconds_of(duration)
    if allowed_s <= 0 and not run.recorded_steps:
        raise DeadlineExceeded(here, 0.0)
    began_s = run.since_start_s()
    # The same when the run is resumed, however late that is.
    until_s = record_value(context, "within", SECONDS, lambda: began_s + allowed_s)
    deadline_at_s = min(context.deadline_at_s, run.started_s + until_s)
    with using_context(context.derive(deadline_at_s=deadline_at_s)):
        try:
            async with cancel_after(max(until_s - began_s, 0.0)) as limit:
                yield
        except (TimeoutError, asyncio.CancelledError) as error:
            if not is_expiry(error, limit, run, around=context):
                raise
            raise DeadlineExceeded(here, allowed_s) from None


def remaining() -> float:
    """Seconds until the deadline here: infinity where there is none, never below 0.

    A resumed run is told what it was told before, so that it decides alike.
    """
    context = current_context("remaining()")
    if math.isinf(context.deadline_at_s):
        return math.inf
    return record_value(context, "remaining", SECONDS, lambda: max(context.remaining_s(), 0.0))


def has_deadline() -> bool:
    """Whether the code that runs now has a deadline."""
    return not math.isinf(current_context("has_deadline()").deadline_at_s)


def _turns(prompt: Prompt, system: str | None, raw: bool) -> str | tuple[Message, ...]:
    if not isinstance(prompt, str):
        return tuple(prompt)
    if raw:
        return prompt
    before = (Message("system", system),) if system else ()
    return (*before, Message("user", prompt))


def _discard(branch: Awaitable[Any]) -> None:
    """End a branch that never began; does nothing to one that ended."""
    if inspect.iscoroutine(branch):
        branch.close()  # spares it the warning that it was never awaited
    elif asyncio.isfuture(branch):
        branch.cancel()
