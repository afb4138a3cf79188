"""One request between its asyncio caller and vLLM: parameters in, chunks out."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from serving.errors import RequestFailed, ServingError, error_of_stop_reason
from serving.generation import Chunk, Completion, FinishReason, GenerationRequest, Usage
from serving.slo import to_tags

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

Answer = Chunk | ServingError


class Caller:
    """Collects one request's output on the engine's thread, and wakes its caller's event loop."""

    def __init__(self, request: GenerationRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._loop = loop
        self._submitted_s = time.monotonic()
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
            ttft_s=(self._first_token_s or now_s) - self._submitted_s,
            e2el_s=now_s - self._submitted_s,
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
