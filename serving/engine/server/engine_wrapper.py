"""vLLM's engine as the server uses it: users of keys, checked structured output, named errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serving.engine.server.access import key_of_request
from serving.engine.server.promises import Promise, PromiseCounters
from serving.engine.server.slo_middleware import (
    DROPPED_STATUS,
    Refusal,
    record_admission,
    record_drop,
    record_refusal,
)
from serving.engine.structured_output.check import StructuredOutputCheck
from serving.errors import (
    InvalidRequest,
    InvalidSlo,
    RequestDropped,
    RequestFailed,
    error_of_stop_reason,
)
from serving.slo import BEST_EFFORT, Slo, from_tags

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from serving.engine.server.request_spans import RequestSpans


class EngineWrapper:
    """Replaces an engine's `generate` and `shutdown`, so that failed calls get named errors.

    A request gets the user of its key, and its structured output is checked, before the engine
    receives it.

    In vLLM's HTTP API an aborted request is an ordinary response: 200 with finish_reason "abort".
    A stream without a token does not even contain that, as vLLM omits chunks without tokens. And
    calls that are running while the engine shuts down would wait for ever.

    Args:
        tracer: makes spans of requests, if there is one.
    """

    def __init__(self, engine: AsyncLLM, tracer: Tracer | None = None) -> None:
        self.is_stopped = False  # while serving, vLLM calls `shutdown` only after a signal
        self._engine = engine
        self._generate = engine.generate
        self._shutdown = engine.shutdown
        self._loop = asyncio.get_running_loop()
        self._promises = PromiseCounters()
        self._spans = _spans_of(tracer)
        self._structured_output = StructuredOutputCheck(engine.vllm_config, engine.get_tokenizer())
        engine.generate = self.generate
        engine.shutdown = self.shutdown

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, *args: Any, **kwargs: Any
    ) -> AsyncIterator[RequestOutput]:
        """The engine's outputs; raises an error that vLLM puts into the response."""
        from vllm.exceptions import GracefulHTTPError
        from vllm.sampling_params import RequestOutputKind

        slo = await self._admit(sampling_params)
        is_delta = sampling_params.output_kind == RequestOutputKind.DELTA
        with self._followed(slo, kwargs.get("trace_headers")) as promise:
            async with aclosing(
                self._generate(prompt, sampling_params, *args, **kwargs)
            ) as outputs:
                try:
                    async for output in outputs:
                        promise.observe(output, is_delta=is_delta)
                        for part in output.outputs:
                            # Else it may be a stop string of the caller that looks like a drop.
                            if part.finish_reason == "abort":
                                promise.end(_end_of_abort(part.stop_reason))
                                _raise_named(part.stop_reason)
                        if output.finished:
                            promise.end("completed")  # the caller may not ask for more
                        yield output
                except GracefulHTTPError as error:
                    if not self.is_stopped:
                        raise
                    raise _failure(str(error), HTTPStatus.SERVICE_UNAVAILABLE) from error

    @contextmanager
    def _followed(self, slo: Slo, headers: Mapping[str, str] | None) -> Iterator[Promise]:
        """Count what becomes of a request; with a tracer, make its spans at its end."""
        start_ns = time.time_ns()
        try:
            with self._promises.follow(slo) as promise:
                yield promise
        finally:
            if self._spans is not None:
                self._spans.record(promise, headers or {}, start_ns)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End running calls with an error, then the engine; vLLM calls this from another thread."""
        from vllm.exceptions import GracefulHTTPError

        if not self.is_stopped:
            self.is_stopped = True
            error = GracefulHTTPError("the server is stopping", HTTPStatus.SERVICE_UNAVAILABLE)
            processor = self._engine.output_processor
            self._loop.call_soon_threadsafe(processor.propagate_error, error)
        self._shutdown(*args, **kwargs)

    def close(self) -> None:
        """End the process that tries structured output."""
        self._structured_output.close()

    async def _admit(self, params: SamplingParams) -> Slo:
        set_key_tags(params)
        try:
            await self._structured_output.check(params.structured_outputs)
        except InvalidRequest as error:
            raise _refusal(400, error.args[1], "structured_outputs") from error
        except RequestFailed as error:
            raise _failure(error.args[1], HTTPStatus.SERVICE_UNAVAILABLE) from error
        record_admission()
        return _slo_of(params)


def set_key_tags(params: SamplingParams) -> None:
    """Give a request the user and the weight of its key; one that names others is refused."""
    key = key_of_request()
    if key is None:
        return
    tags = params.extra_args or {}
    fixed = {"slo_user": key.user, "slo_weight": key.weight}
    for tag, value in fixed.items():
        if value is not None and tags.get(tag, value) != value:
            what = tag.removeprefix("slo_")
            raise _refusal(403, f"this key's requests have the {what} {value!r}", tag)
    known = {tag: value for tag, value in fixed.items() if value is not None}
    if known:
        params.extra_args = tags | known


def _refusal(status: int, reason: str, param: str) -> Exception:
    record_refusal(Refusal(status, reason, param))
    return _failure(reason, HTTPStatus(status))


def _spans_of(tracer: Tracer | None) -> RequestSpans | None:
    if tracer is None:
        return None
    from serving.engine.server.request_spans import RequestSpans  # needs OpenTelemetry

    return RequestSpans(tracer)


def _slo_of(params: SamplingParams) -> Slo:
    """The request's SLO; malformed tags, which the scheduler rejects, promise nothing."""
    try:
        return from_tags(params.extra_args)
    except InvalidSlo:
        return BEST_EFFORT


def _end_of_abort(stop_reason: object) -> str:
    error = error_of_stop_reason("", stop_reason)
    if error is None:
        return "cancelled"
    return "dropped" if isinstance(error, RequestDropped) else "failed"


def _raise_named(stop_reason: object) -> None:
    from vllm.exceptions import VLLMValidationError

    error = error_of_stop_reason("", stop_reason)
    if isinstance(error, RequestDropped):
        record_drop(str(stop_reason))
        raise _failure(str(stop_reason), HTTPStatus(DROPPED_STATUS))
    if error is not None:
        raise VLLMValidationError(str(stop_reason), parameter="vllm_xargs")


def _failure(message: str, status: HTTPStatus) -> Exception:
    """The only error that vLLM's handlers put into a response without logging a traceback."""
    from vllm.exceptions import GenerationError

    failure: Exception = GenerationError(message)
    failure.status_code = status  # type: ignore[attr-defined]
    return failure
