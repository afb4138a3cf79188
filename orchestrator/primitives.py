"""What flow code calls: llm, gather, within, remaining."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from pydantic import BaseModel, ValidationError

from orchestrator.calls import run_llm_call
from orchestrator.causality import frontier, join, own_task
from orchestrator.context import Position, at, current, moved
from orchestrator.durations import seconds_of
from orchestrator.errors import DeadlineExceeded
from orchestrator.schemas import closed_schema
from serving.errors import StructuredOutputInvalid
from serving.generation import Message

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

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
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
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
    model = schema if isinstance(schema, type) else None
    json_schema = closed_schema(model.model_json_schema()) if model is not None else schema
    completion = await run_llm_call(
        current("llm()"),
        prompt=_turns(prompt, system, raw),
        schema=None if isinstance(json_schema, type) else json_schema,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        on_text=on_text,
    )
    if schema is None:
        return completion.text
    if model is None:
        return completion.parsed()
    try:
        return model.model_validate_json(completion.text)
    except ValidationError as error:
        raise StructuredOutputInvalid(
            completion.request_id, completion.finish_reason, _first_complaint(error)
        ) from None


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
    position = current("gather()")
    scopes = position.scope.branches(len(branches))
    before = frontier()

    async def run(branch: Awaitable[Any], here: Position) -> tuple[Any, frozenset[int]]:
        own_task(before)
        with at(here):
            result = await branch
        return result, frontier()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    run(branch, moved(position, scope=scope, stage_calls=len(branches)))
                )
                for branch, scope in zip(branches, scopes, strict=True)
            ]
    except BaseExceptionGroup as failures:
        raise _first_failure(failures) from None
    finally:
        for branch in branches:
            if inspect.iscoroutine(branch):
                branch.close()  # does nothing to one that ran, and spares the others a warning
    ended = [task.result() for task in tasks]
    join([ends for _, ends in ended])
    return tuple(result for result, _ in ended)


@asynccontextmanager
async def within(duration: str | float) -> AsyncIterator[None]:
    """Shorten the deadline for a block, and cancel what is not done by then.

    The deadline around the block still holds: a longer duration changes nothing.

    Raises:
        DeadlineExceeded: the block's own limit passed.
        InvalidDuration: not a duration.
    """
    position = current("within()")
    allowed_s = seconds_of(duration)
    deadline_at_s = min(position.deadline_at_s, position.run.clock.now_s() + allowed_s)
    with at(moved(position, deadline_at_s=deadline_at_s)):
        try:
            async with asyncio.timeout(allowed_s) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(position.scope.path or position.run.flow, allowed_s) from None


def remaining() -> float:
    """Seconds until the deadline here: infinity where there is none, never below 0."""
    return max(current("remaining()").remaining_s(), 0.0)


def has_deadline() -> bool:
    """Whether the code that runs now has a deadline."""
    return not math.isinf(current("has_deadline()").deadline_at_s)


def _turns(prompt: Prompt, system: str | None, raw: bool) -> str | tuple[Message, ...]:
    if not isinstance(prompt, str):
        return tuple(prompt)
    if raw:
        return prompt
    before = (Message("system", system),) if system else ()
    return (*before, Message("user", prompt))


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first_failure(first) if isinstance(first, BaseExceptionGroup) else first


def _first_complaint(error: ValidationError) -> str:
    complaint = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in complaint["loc"])
    return f"{where}: {complaint['msg']}" if where else str(complaint["msg"])
