"""One request between its asyncio caller and vLLM: vLLM's parameters, chunks, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from serving.engine.clients.tool_calls import TokenChunk, ToolReader
from serving.engine.setup.model_loading import error_summary
from serving.errors import InvalidRequest, RequestFailed, ServingError, error_of_stop_reason
from serving.generation import (
    Chunk,
    Completion,
    FinishReason,
    GenerationRequest,
    Token,
    Usage,
)
from serving.slo import Slo, SloKind, TagValue, to_tags

if TYPE_CHECKING:
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

Answer = Chunk | ServingError

MIN_TAG_S = 0.001
"""Value of a time in an SLO tag after it has run out, in seconds; a tag must be above 0."""

IMPOSSIBLE_LOGPROB = -9999.0
"""Log-probability that servers send for a token that cannot occur; vLLM itself has -infinity, which
JSON has not."""


class PendingCall:
    """A call that waits for its answer: collects vLLM's output, and wakes the caller's event loop.

    Its methods run on the engine's thread.

    Attributes:
        choice_tokens: the first token of each of the request's choices.
        reader: reads the tool calls in the answer; None if the request has no tools.
        submitted_s: when the caller submitted the request, by time.monotonic. The time before vLLM
            receives the request counts for its TTFT, its latency and its SLO.
    """

    def __init__(
        self,
        request: GenerationRequest,
        loop: asyncio.AbstractEventLoop,
        *,
        submitted_s: float,
        choice_tokens: Sequence[int] = (),
    ) -> None:
        self.request = request
        self.choice_tokens = choice_tokens
        self.reader: ToolReader | None = None
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.submitted_s = submitted_s
        self._loop = loop
        self._first_token_s: float | None = None
        self._texts: list[str] = []
        self._output_tokens = 0
        self._tokens: list[Token] = []

    def deliver(self, answer: Answer) -> None:
        """Pass an answer to the caller; does nothing if the caller's event loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.answers.put_nowait, answer)

    def take(self, output: RequestOutput) -> Answer:
        """Add vLLM's next output of this request; returns it as a chunk or a named error."""
        [part] = output.outputs
        self._texts.append(part.text)
        self._output_tokens += len(part.token_ids)
        try:
            self._tokens += self._new_tokens(part)
        except (KeyError, ValueError):  # of this request only, so it must not end the engine
            fault = "vLLM listed no log-probability of a token"
            return RequestFailed(self.request.request_id, fault)
        if self._first_token_s is None and part.token_ids:
            self._first_token_s = time.monotonic()
        if not output.finished:
            return self._chunk(part)
        reason = finish_reason(part.finish_reason)
        if reason is None:
            named = error_of_stop_reason(self.request.request_id, part.stop_reason)
            return named or RequestFailed(self.request.request_id, str(part.finish_reason))
        now_s = time.monotonic()
        completion = Completion(
            request_id=self.request.request_id,
            text="".join(self._texts),
            finish_reason=reason,
            usage=Usage(
                prompt_tokens=len(output.prompt_token_ids or ()),
                output_tokens=self._output_tokens,
                cached_tokens=output.num_cached_tokens or 0,
            ),
            ttft_s=(self._first_token_s or now_s) - self.submitted_s,
            e2el_s=now_s - self.submitted_s,
            choice_logprobs=self._choice_logprobs(part),
            tokens=tuple(self._tokens),
        )
        return self._chunk(part, completion)

    def _chunk(self, part: CompletionOutput, completion: Completion | None = None) -> Chunk:
        if self.reader is None:
            return Chunk(part.text, completion)
        return TokenChunk(part.text, completion, tuple(part.token_ids))

    def _new_tokens(self, part: CompletionOutput) -> list[Token]:
        if self.request.logprobs is None:
            return []
        return [
            token_of(token_id, listed, self.request.logprobs)
            for token_id, listed in zip(part.token_ids, part.logprobs or (), strict=True)
        ]

    def _choice_logprobs(self, part: CompletionOutput) -> tuple[float, ...]:
        if not self.choice_tokens or not part.logprobs:
            return ()
        of_first = part.logprobs[0]
        return tuple(of_first[token].logprob for token in self.choice_tokens)


def token_of(token_id: int, listed: Mapping[int, Logprob], num_top: int) -> Token:
    """A token of an answer.

    Args:
        listed: what vLLM lists at its place, by token id: the token itself and the most probable.
        num_top: how many of the most probable to keep.
    """
    top = sorted(listed.values(), key=lambda each: -each.logprob)[:num_top]
    return Token(
        text=listed[token_id].decoded_token or "",
        logprob=max(listed[token_id].logprob, IMPOSSIBLE_LOGPROB),
        top=tuple(
            (each.decoded_token or "", each.logprob)
            for each in top
            if each.logprob > IMPOSSIBLE_LOGPROB
        ),
    )


def finish_reason(reason: str | None) -> FinishReason | None:
    """A finish reason of vLLM or a server as ours; None if the request ended without an answer."""
    if reason in ("stop", "tool_calls", "repetition"):
        return "stop"
    return "length" if reason == "length" else None


def sampling_params(
    request: GenerationRequest, available_tokens: int, choice_tokens: Sequence[int] = ()
) -> SamplingParams:
    """vLLM's parameters for a request.

    Args:
        available_tokens: limit on output tokens: the rest of the model's context.
        choice_tokens: the first token of each of the request's choices.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    limit = 1 if choice_tokens else request.max_tokens
    return SamplingParams(
        max_tokens=available_tokens if limit is None else min(limit, available_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        top_k=request.top_k or 0,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        stop=list(request.stop),
        allowed_token_ids=list(choice_tokens) or None,
        logprobs=request.logprobs,
        logprob_token_ids=list(choice_tokens) or None,
        structured_outputs=structured_outputs(request),
        output_kind=RequestOutputKind.DELTA,
        extra_args=to_tags(request.slo) or None,
    )


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """vLLM's parameter for a request's schema; None without one."""
    from vllm.sampling_params import StructuredOutputsParams

    return None if request.schema is None else StructuredOutputsParams(json=dict(request.schema))


def set_remaining_slo(params: SamplingParams, slo: Slo, passed_s: float) -> None:
    """Set a request's SLO tags to the time that remains, `passed_s` after its submission."""
    params.extra_args = remaining_tags(slo, passed_s) or None


def remaining_tags(slo: Slo, passed_s: float) -> dict[str, TagValue]:
    """An SLO's tags, with times that count from submission reduced by `passed_s`.

    A time that has run out becomes MIN_TAG_S. TBT and the limit on time without a slot do not count
    from submission, so they are unchanged. Malformed values are unchanged too: the scheduler
    rejects them.
    """
    tags = to_tags(slo)
    from_submission = ["slo_deadline_s", "slo_final_s"]
    if slo.kind == SloKind.LATENCY:
        tags.setdefault("slo_ttft_s", slo.ttft_s)
        from_submission.append("slo_ttft_s")
    for key in from_submission:
        value = tags.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > MIN_TAG_S:
            tags[key] = max(value - passed_s, MIN_TAG_S)
    return tags


def named_error(request_id: str, error: Exception) -> ServingError:
    """The named error for an exception that vLLM raised when it was given a request."""
    from vllm.exceptions import VLLMClientError

    if isinstance(error, ValueError | TypeError | ArithmeticError | VLLMClientError):
        return InvalidRequest(request_id, error_summary(error))
    return RequestFailed(request_id, f"{type(error).__name__}: {error_summary(error)}")
