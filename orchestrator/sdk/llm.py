"""llm: a call of the run's model, with the sub-deadline of the call's stage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, Unpack, overload

from orchestrator.durations import Duration, seconds_of
from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.call_text import OnText
from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.answers import Answer
from orchestrator.sdk.parallel import gather
from orchestrator.sdk.prompts import Prompt, turns_of
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.sdk.time_limits import within
from serving.generation import SEED_LIMIT, GenerationRequest, check_request

T = TypeVar("T")

MAX_ANSWERS = 128
"""Most answers of one `llm(n=)`: OpenAI's limit."""


class ModelArguments(TypedDict, total=False):
    """What `llm` and `agent` say of all answers of a model: how it is asked, and which it is."""

    system: str | None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int | None
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    stop: Sequence[str]
    seed: int | None
    engine: str | None
    model: str | None


class Sampling(ModelArguments, total=False):
    """Arguments of `llm` that do not change the type of what it returns."""

    raw: bool
    ttft: Duration | None
    tbt: Duration | None
    deadline: Duration | None
    waiting_time: Duration | None


class SamplingOfOne(Sampling, total=False):
    """The same, for one answer."""

    on_text: OnText | None


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    logprobs: None = None,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> str: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[T],
    logprobs: None = None,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> T: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: object,
    logprobs: None = None,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> Any: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    logprobs: int,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> Answer[str]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[T],
    logprobs: int,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> Answer[T]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: object,
    logprobs: int,
    n: None = None,
    **more: Unpack[SamplingOfOne],
) -> Answer[Any]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    logprobs: None = None,
    n: int,
    **more: Unpack[Sampling],
) -> list[str]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[T],
    logprobs: None = None,
    n: int,
    **more: Unpack[Sampling],
) -> list[T]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: object,
    logprobs: None = None,
    n: int,
    **more: Unpack[Sampling],
) -> list[Any]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    logprobs: int,
    n: int,
    **more: Unpack[Sampling],
) -> list[Answer[str]]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[T],
    logprobs: int,
    n: int,
    **more: Unpack[Sampling],
) -> list[Answer[T]]: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: object,
    logprobs: int,
    n: int,
    **more: Unpack[Sampling],
) -> list[Answer[Any]]: ...


async def llm(
    prompt: Prompt,
    *,
    schema: object = None,
    logprobs: int | None = None,
    n: int | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
    engine: str | None = None,
    model: str | None = None,
    ttft: Duration | None = None,
    tbt: Duration | None = None,
    deadline: Duration | None = None,
    waiting_time: Duration | None = None,
) -> Any:
    """Call a model; the engine gets the sub-deadline of the call's stage.

    Args:
        prompt: the user's message, or the turns of a chat: Messages or OpenAI's dicts.
        schema: what the answer must be: a type that pydantic reads, such as a model, a dataclass,
            `list[int]`, `Literal["yes", "no"]` or `int | None`; or a JSON schema.
        logprobs: return an Answer, with the log-probability of each of its tokens and of this many
            alternatives, 0 to MAX_LOGPROBS.
        n: return a list of this many answers, 1 to MAX_ANSWERS, each sampled in a call of its own.
            The calls run side by side, as in `gather`; the prompt is in vLLM's prefix cache once.
        system: a system message before a plain prompt.
        max_tokens: most output tokens; None: as many as the context window allows.
        temperature: of sampling; 0 is greedy.
        top_p: sample among the most probable tokens that have this probability together.
        top_k: sample among this many most probable tokens; None: no limit.
        min_p: sample among tokens at least this fraction as probable as the most probable, 0 to 1.
        repetition_penalty: above 1, tokens that the prompt or answer has become less probable.
        frequency_penalty: above 0, the more often the answer has a token, the less probable it
            becomes; -2 to 2.
        presence_penalty: above 0, tokens that the answer has become less probable; -2 to 2.
        stop: texts that end the answer; they are not part of it.
        seed: of sampling; None: not fixed. With `n` that of the first answer; each other answer has
            the seed after that of the one before.
        raw: complete a plain prompt without the model's chat template.
        on_text: called with each piece of new text as it arrives; not with `n`.
        engine: name of the engine that answers; None: the runtime's default one.
        model: a model that this engine serves; without `engine`, one by which it is found.
        ttft, tbt: make the call a stream with these targets, the time to the first token and
            between tokens ("500ms", or seconds). The one that is not given is 5 s or 0.2 s. The
            engine then gets no deadline of the call; the run's still ends it.
        deadline: of this call, as `within`: it can only come earlier than the one around it.
        waiting_time: longest time without service before the scheduler drops the request; 5 s
            with `ttft` or `tbt`, else none. Source of these four: Wu (2025), chapter 5.
    Returns:
        The text; with a type a value of it; with a JSON schema the JSON value. With logprobs an
        Answer of it; with `n` a list.
    Raises:
        StructuredOutputInvalid: the answer does not satisfy the schema, usually because it was cut
            off.
        InvalidRequest: an argument is out of range, or pydantic cannot read the type.
        DeadlineExceeded: the current deadline passed first.
        ServingError: the engine could not answer; see serving.errors.
        RequestDropped: it waited for longer than `waiting_time`.
        UnknownEngine, UnknownModel, ModelNotServed: there is no such engine, or none serves the
            model.
        InvalidDuration: a time is none.
        OutsideRun: not within a flow.
        ValueError: the prompt is no text and no turns; or `n` is out of range, above 1 at
            temperature 0, where all answers would be equal, or given with `on_text`.
    """
    form = None if schema is None else AnswerForm.of(schema)
    request = GenerationRequest(
        request_id="",
        prompt=turns_of(prompt, system, raw),
        schema=None if form is None else form.schema,
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
        logprobs=logprobs,
    )
    options = CallOptions(
        engine=engine,
        model=model,
        ttft_s=_seconds_or_none(ttft),
        tbt_s=_seconds_or_none(tbt),
        waiting_s=_seconds_or_none(waiting_time),
    )
    if n is not None:
        _require_several(n, temperature, on_text)
    current_context("llm()")
    async with nullcontext() if deadline is None else within(deadline):
        if n is None:
            return await _answer(request, form, options, on_text)
        requests = _with_seeds(request, n)
        return list(await gather(*(_answer(each, form, options) for each in requests)))


async def _answer(
    request: GenerationRequest,
    form: AnswerForm | None,
    options: CallOptions,
    on_text: OnText | None = None,
) -> Any:
    completion = await run_llm_call(current_context("llm()"), request, on_text, options)
    value = completion.text if form is None else form.value_in(completion)
    if request.logprobs is None:
        return value
    return Answer(value, completion.text, completion.tokens)


def _seconds_or_none(duration: Duration | None) -> float | None:
    return None if duration is None else seconds_of(duration)


def _require_several(n: int, temperature: float, on_text: OnText | None) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_ANSWERS:
        raise ValueError(f"n is {n!r}; it must be a whole number from 1 to {MAX_ANSWERS}")
    if n > 1 and temperature == 0:
        raise ValueError(f"n={n} answers at temperature 0 would be equal: raise it, or leave out n")
    if on_text is not None:
        raise ValueError("on_text cannot tell several answers apart: leave out n or on_text")


def _with_seeds(request: GenerationRequest, n: int) -> list[GenerationRequest]:
    """The request n times; if it has a seed, each with another one."""
    check_request(replace(request, request_id="llm()"))  # seeds can be counted up
    seed = request.seed
    if seed is None:
        return [request] * n
    span = 2 * SEED_LIMIT
    seeds = [(seed + SEED_LIMIT + number) % span - SEED_LIMIT for number in range(n)]
    return [replace(request, seed=each) for each in seeds]
