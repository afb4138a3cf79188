"""The interface of an engine: requests, completions, and the Engine protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.images import Image
from serving.model_json import json_of
from serving.slo import BEST_EFFORT, Slo

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length"]

SEED_LIMIT = 2**63
"""Seeds are in [-SEED_LIMIT, SEED_LIMIT), the range of a signed 64-bit integer."""

MAX_TOP_K = 2**31 - 1
"""Largest `top_k`; engines hold it as a signed 32-bit integer."""

MAX_PENALTY = 2.0
"""Frequency and presence penalties are in [-MAX_PENALTY, MAX_PENALTY], as OpenAI's and vLLM's."""

MAX_CHOICES = 20
"""Most choices of a request: OpenAI's API gives the probabilities of 20 tokens."""

MAX_LOGPROBS = 20
"""Most alternatives for each token of an answer: the limit of vLLM and of OpenAI's chats."""


UNLESS_DEFAULT = MappingProxyType({"in_digest": "unless default"})
"""Metadata of a dataclass field that counts in digests only if it is not its default, so that a
message without it has the digest that it had before the field existed."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a model may call.

    Attributes:
        parameters: JSON schema of its arguments, an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as a model asks for it in an answer.

    Attributes:
        id: unique within the chat; the tool's result names it.
        arguments: JSON text, as the model wrote it: possibly not valid.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat.

    Attributes:
        content: a text, or texts and images in their order.
        tool_calls: of an assistant's turn.
        tool_call_id: the call whose result this turn is (role "tool"); "" for other turns.
    """

    role: Role
    content: str | tuple[str | Image, ...]
    tool_calls: tuple[ToolCall, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    tool_call_id: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def text(self) -> str:
        """The texts of the content, without its images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def has_images(self) -> bool:
        """Whether the content has images."""
        parts = () if isinstance(self.content, str) else self.content
        return any(isinstance(part, Image) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One LLM call.

    Attributes:
        prompt: a plain prompt, completed without a chat template, or the turns of a chat.
        max_tokens: limit on output tokens; None: the rest of the model's context.
        schema: JSON schema that the output must satisfy; None: free text.
        slo: the call's service level objective.
        priority: lower is earlier, for the policies that use it.
        trace_headers: traceparent and tracestate of the caller's span, sent to a remote engine.
        seed: same seed, same tokens; None: random. In [-SEED_LIMIT, SEED_LIMIT).
        stop: texts that end the answer; they are not part of it.
        repetition_penalty: above 1, tokens that the prompt or answer has become less probable.
        top_k: sample among this many most probable tokens, 1 to MAX_TOP_K; None: among all.
        min_p: sample among tokens at least this fraction as probable as the most probable one, in
            [0, 1]; 0: among all.
        frequency_penalty: subtracted from a token's logit for each time that the answer has it.
        presence_penalty: subtracted from a token's logit once if the answer has it.
        choices: the answer is one of these texts, by its first token alone; no two may begin with
            the same token. At most MAX_CHOICES. Not together with a schema.
        logprobs: give the log-probability of each token of the answer, and this many alternatives,
            0 to MAX_LOGPROBS; None: neither. Not together with choices.
        tools: tools that the model may call, in its own format; only for a chat, and only if the
            engine's `info.tool_parser` is not "". Not together with a schema or choices.
    """

    request_id: str
    prompt: str | tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    repetition_penalty: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    choices: tuple[str, ...] = ()
    logprobs: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    slo: Slo = BEST_EFFORT
    priority: int = 0
    trace_headers: Mapping[str, str] = field(default_factory=dict)


def check_request(request: GenerationRequest) -> None:
    """Check the types of a request's fields.

    An engine might notice a wrong type only in the middle of a step, which other requests share.
    Ranges that every engine checks at arrival, such as the temperature's, are not checked here;
    those of fields that servers may ignore are.

    Raises:
        InvalidRequest: a field has a wrong type or range; the reason names the field.
    """
    checks = {
        "prompt must be a text, or Messages with texts and Images": _is_prompt(request.prompt),
        "max_tokens must be a whole number": request.max_tokens is None
        or _is_whole(request.max_tokens),
        "seed must be a whole number from -2**63 to 2**63 - 1": request.seed is None
        or _is_seed(request.seed),
        "stop must be a tuple of texts, none of them empty": _are_texts(request.stop),
        "repetition_penalty must be a number above 0": _is_above_0(request.repetition_penalty),
        "temperature must be a number": _is_number(request.temperature),
        "top_p must be a number": _is_number(request.top_p),
        f"top_k must be a whole number from 1 to {MAX_TOP_K}": request.top_k is None
        or (_is_whole(request.top_k) and 1 <= request.top_k <= MAX_TOP_K),
        "min_p must be a number from 0 to 1": _is_within(request.min_p, 0.0, 1.0),
        f"frequency_penalty must be a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}": _is_within(
            request.frequency_penalty, -MAX_PENALTY, MAX_PENALTY
        ),
        f"presence_penalty must be a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}": _is_within(
            request.presence_penalty, -MAX_PENALTY, MAX_PENALTY
        ),
        f"choices must be at most {MAX_CHOICES} texts, none of them empty or twice": _are_texts(
            request.choices
        )
        and len(set(request.choices)) == len(request.choices) <= MAX_CHOICES,
        "choices and schema exclude each other": not request.choices or request.schema is None,
        f"logprobs must be a whole number from 0 to {MAX_LOGPROBS}": request.logprobs is None
        or (_is_whole(request.logprobs) and 0 <= request.logprobs <= MAX_LOGPROBS),
        "choices and logprobs exclude each other": not request.choices or request.logprobs is None,
        "tools must be ToolSpecs, none of them twice": _are_tools(request.tools),
        "tools need a chat, and exclude schema and choices": not request.tools
        or not (isinstance(request.prompt, str) or request.schema is not None or request.choices),
        "priority must be a whole number": _is_whole(request.priority),
        "slo must be an Slo": _is_slo(request.slo),
    }
    for fault, holds in checks.items():
        if not holds:
            raise InvalidRequest(request.request_id, fault)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_above_0(value: object) -> bool:
    return _is_number(value) and value > 0


def _is_within(value: object, least: float, most: float) -> bool:
    return _is_number(value) and least <= value <= most


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seed(value: object) -> bool:
    return _is_whole(value) and -SEED_LIMIT <= value < SEED_LIMIT


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(text, str) and text for text in value)


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, tuple | list)
        and all(isinstance(turn, Message) and _is_turn(turn) for turn in value)
    )


def _is_turn(turn: Message) -> bool:
    parts = (turn.content,) if isinstance(turn.content, str) else turn.content
    return (
        isinstance(parts, tuple | list)
        and all(isinstance(part, str) or _is_image(part) for part in parts)
        and all(isinstance(call, ToolCall) for call in turn.tool_calls)
    )


def _is_image(part: object) -> bool:
    return isinstance(part, Image) and isinstance(part.url, str)


def _are_tools(value: object) -> bool:
    if not isinstance(value, tuple | list) or not all(isinstance(t, ToolSpec) for t in value):
        return False
    return len({tool.name for tool in value}) == len(value)


def _is_slo(value: object) -> bool:
    return isinstance(value, Slo)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # prompt tokens found in the prefix cache


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer.

    The log-probabilities (natural) are the model's own, before temperature, top_p and penalties.
    With a schema they are those among the tokens that the schema allows.

    Attributes:
        text: "" for a part of a character; the last of its tokens has the character.
        top: the most probable tokens at this place as (text, log-probability), best first: as many
            as the request asked for, or fewer if fewer are possible here.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The finished answer to one request.

    Attributes:
        ttft_s: seconds from submission to the first token.
        e2el_s: seconds from submission to the last.
        choice_logprobs: of each of the request's choices, the log-probability that the answer
            begins with its first token; empty without choices.
        tokens: all output tokens, those that end the answer included, if the request has logprobs;
            else empty. Their texts join to the answer's, but for the end token or stop text, and
            for bytes that are no character.
        tool_calls: what the model asks for, if the request has tools; `text` is what it wrote
            beside these calls.
    """

    request_id: str
    text: str
    finish_reason: FinishReason
    usage: Usage
    ttft_s: float
    e2el_s: float
    choice_logprobs: tuple[float, ...] = ()
    tokens: tuple[Token, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    def parsed(self) -> Any:
        """The text parsed as JSON; raises StructuredOutputInvalid if it is not valid JSON."""
        try:
            return json_of(self.text)
        except ValueError as error:
            raise StructuredOutputInvalid(self.request_id, self.finish_reason, str(error)) from None


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text of a growing answer; the last chunk carries the completion."""

    text: str
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Description of an engine, for records and for display.

    Attributes:
        name: embedded, remote, or a test double's name.
        random_weights: the model's text is meaningless, and every output must say so.
        caveat: what everybody who reads the model's text should know; "": nothing.
        scheduler: this project's scheduler class that drives the engine; "" for another one.
        parameters: number of the model's weights; None: not known.
        tool_parser: how the engine reads tool calls in the model's own format (a name of vLLM's
            tool parsers, or "server"); "": it does not.
    """

    name: str
    model: str
    random_weights: bool
    max_model_tokens: int | None
    scheduler: str = ""
    policy: str = ""
    caveat: str = ""
    parameters: int | None = None
    tool_parser: str = ""


class Engine(Protocol):
    """Runs LLM calls. Every call ends in a completion or a named ServingError."""

    @property
    def info(self) -> EngineInfo:
        """Description of this engine; complete once it has started."""
        ...

    async def start(self) -> None:
        """Make the engine ready; idempotent."""
        ...

    def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield its text as it grows; closing the iterator aborts it."""
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Submit a request and wait for its answer; cancelling aborts it."""
        ...

    async def close(self) -> None:
        """End every request still running with EngineClosed, and free the engine."""
        ...


@runtime_checkable
class ModelServer(Protocol):
    """An engine that serves several models."""

    async def models(self) -> tuple[str, ...]:
        """The names of the models that it serves; it starts if it has not."""
        ...

    async def of_model(self, model: str) -> Engine:
        """The engine for one of its models, started; closed with this one.

        Raises:
            ModelNotServed: it does not serve the model.
        """
        ...


@runtime_checkable
class EngineInProcess(Protocol):
    """An Engine of which a process has one at a time.

    Attributes:
        may_be_closed: asked when another one is to start, from any thread: whether nobody needs
            this one any more.
    """

    may_be_closed: Callable[[], bool]

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, has died or could not be loaded; it answers no more calls."""
        ...


async def last_completion(chunks: AsyncIterator[Chunk]) -> Completion:
    """The completion at the end of a stream."""
    completion = None
    async for chunk in chunks:
        completion = chunk.completion
    assert completion is not None, "a stream ends in a completion or an error"
    return completion
