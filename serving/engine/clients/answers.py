"""One request between its asyncio caller and vLLM: parameters in, chunks out."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from serving.engine.setup.model_loading import telling_line
from serving.errors import InvalidRequest, RequestFailed, ServingError, error_of_stop_reason
from serving.generation import Chunk, Completion, FinishReason, GenerationRequest, Usage
from serving.slo import Slo, SloKind, TagValue, to_tags

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

Answer = Chunk | ServingError

LEAST_S = 0.001
"""What is left on the wire of a time that has run out: it has no past."""


class Caller:
    """Collects one request's output on the engine's thread, and wakes its caller's event loop.

    Attributes:
        submitted_s: when the caller asked, on the clock of time.monotonic: what it waits for before
            vLLM has its request is part of its answer's times, and of its promise.
    """

    def __init__(
        self, request: GenerationRequest, loop: asyncio.AbstractEventLoop, *, submitted_s: float
    ) -> None:
        self.request = request
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.submitted_s = submitted_s
        self._loop = loop
        self._first_token_s: float | None = None
        self._texts: list[str] = []
        self._output_tokens = 0

    def answer(self, answer: Answer) -> None:
        """Hand an answer over; a loop that is closed has nobody left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.answers.put_nowait, answer)

    def take(self, output: RequestOutput) -> Answer:
        """The answer that vLLM's next output of this request amounts to."""
        [part] = output.outputs
        self._texts.append(part.text)
        self._output_tokens += len(part.token_ids)
        if self._first_token_s is None and part.token_ids:
            self._first_token_s = time.monotonic()
        if not output.finished:
            return Chunk(part.text)
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
        )
        return Chunk(part.text, completion)


def finish_reason(reason: str | None) -> FinishReason | None:
    """vLLM's finish reason as ours; None if the request came to no answer."""
    if reason in ("stop", "repetition"):
        return "stop"
    return "length" if reason == "length" else None


def sampling_params(request: GenerationRequest, room_tokens: int) -> SamplingParams:
    """vLLM's parameters for a request; `room_tokens` is what its prompt leaves of the context."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    asked = request.max_tokens
    structured: Any = None
    if request.schema is not None:
        structured = StructuredOutputsParams(json=dict(request.schema))
    return SamplingParams(
        max_tokens=room_tokens if asked is None else min(asked, room_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=list(request.stop),
        structured_outputs=structured,
        output_kind=RequestOutputKind.DELTA,
        extra_args=to_tags(request.slo) or None,
    )


def promise_what_is_left(params: SamplingParams, slo: Slo, passed_s: float) -> None:
    """Have a request's tags promise what is left of its SLO, so many seconds after it was made."""
    params.extra_args = tags_left(slo, passed_s) or None


def tags_left(slo: Slo, passed_s: float) -> dict[str, TagValue]:
    """An SLO's tags, in which the seconds that count from the request's submission are fewer by
    those that have passed since. A time that has run out stays above 0 (LEAST_S).

    The times between two tokens, and without a slot, begin anew each time: they stay. So does what
    is malformed, for the scheduler to refuse.
    """
    tags = to_tags(slo)
    counted = ["slo_deadline_s", "slo_final_s"]
    if slo.kind == SloKind.LATENCY:
        tags.setdefault("slo_ttft_s", slo.ttft_s)
        counted.append("slo_ttft_s")
    for key in counted:
        value = tags.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > LEAST_S:
            tags[key] = max(value - passed_s, LEAST_S)
    return tags


def refusal(request_id: str, error: Exception) -> ServingError:
    """What an error of vLLM's at a request's arrival means to its caller."""
    from vllm.exceptions import VLLMClientError

    if isinstance(error, ValueError | TypeError | ArithmeticError | VLLMClientError):
        return InvalidRequest(request_id, telling_line(error))
    return RequestFailed(request_id, f"{type(error).__name__}: {telling_line(error)}")
