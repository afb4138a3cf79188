"""llm: a call of the run's model, with the sub-deadline of the call's stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, Unpack, get_args, overload

from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.answers import Answer
from orchestrator.sdk.parallel import gather
from orchestrator.sdk.schemas import AnswerForm
from serving.generation import SEED_LIMIT, GenerationRequest, Message, Role, check_request

T = TypeVar("T")

Prompt = str | Sequence[Message | Mapping[str, Any]]
OnText = Callable[[str], None]

MAX_ANSWERS = 128
"""Most answers of one `llm(n=)`: OpenAI's limit."""


class Sampling(TypedDict, total=False):
    """Arguments of `llm` that do not change the type of what it returns."""

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
    raw: bool


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
) -> Any:
    """Call the run's model; the engine gets the sub-deadline of the call's stage.

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
    Returns:
        The text; with a type a value of it; with a JSON schema the JSON value. With logprobs an
        Answer of it; with `n` a list.
    Raises:
        StructuredOutputInvalid: the answer does not satisfy the schema, usually because it was cut
            off.
        InvalidRequest: an argument is out of range, or pydantic cannot read the type.
        DeadlineExceeded: the current deadline passed first.
        ServingError: the engine could not answer; see serving.errors.
        OutsideRun: not within a flow.
        ValueError: `n` is out of range, above 1 at temperature 0, where all answers would be equal,
            or given with `on_text`.
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
    if n is None:
        return await _answer(request, form, on_text)
    _require_several(n, temperature, on_text)
    requests = _with_seeds(request, n)
    return list(await gather(*(_answer(each, form) for each in requests)))


async def _answer(
    request: GenerationRequest, form: AnswerForm | None, on_text: OnText | None = None
) -> Any:
    completion = await run_llm_call(current_context("llm()"), request, on_text)
    value = completion.text if form is None else form.value_in(completion)
    if request.logprobs is None:
        return value
    return Answer(value, completion.text, completion.tokens)


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


def turns_of(prompt: Prompt, system: str | None, raw: bool = False) -> str | tuple[Message, ...]:
    """A prompt as an engine takes it; raises ValueError for what is no text and no turns."""
    if not isinstance(prompt, str):
        if not isinstance(prompt, Sequence) or not prompt:
            raise ValueError(f"a prompt is a text, or turns of a chat, not {prompt!r:.80}")
        return tuple(turn if isinstance(turn, Message) else _message(turn) for turn in prompt)
    if raw:
        return prompt
    before = (Message("system", system),) if system else ()
    return (*before, Message("user", prompt))


def _message(turn: object) -> Message:
    if not isinstance(turn, Mapping):
        raise ValueError(f"a prompt is a text, or Messages and dicts, not a list with {turn!r:.80}")
    content, role = turn.get("content"), next((r for r in _ROLES if r == turn.get("role")), None)
    if turn.keys() != {"role", "content"} or not isinstance(content, str) or role is None:
        raise ValueError(f"a turn has a role ({', '.join(_ROLES)}) and a text as content: {turn!r}")
    return Message(role, content)


_ROLES: tuple[Role, ...] = get_args(Role)
