"""vLLM's engine as the server uses it: users of keys, checked structured output, named errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serving.engine.server.access import key_of_request
from serving.engine.server.advice.middleware import advised_call
from serving.engine.server.healed_calls import HealedCalls
from serving.engine.server.promises import Promise, PromiseCounters
from serving.engine.server.responses import failure
from serving.engine.server.slo_middleware import (
    BEGUN_STATUS,
    DROPPED_STATUS,
    Refusal,
    has_tool_schema,
    record_admission,
    record_error,
    record_refusal,
)
from serving.engine.structured_output.check import StructuredOutputCheck
from serving.errors import (
    BEGUN_STOP_REASON,
    InvalidRequest,
    InvalidSlo,
    RequestDropped,
    RequestFailed,
    dropped_stop_reason,
    error_of_stop_reason,
)
from serving.slo import BEST_EFFORT, Slo, from_tags

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from serving.engine.server.request_spans import RequestSpans
    from serving.engine.server.supervisor import EngineSupervisor


class EngineWrapper:
    """Replaces an engine's methods, so that failed calls get named errors.

    A request gets the user of its key, and its structured output is checked, before the engine
    receives it. If the engine dies before the first output, it is submitted again.

    In vLLM's HTTP API an aborted request is an ordinary response: 200 with finish_reason "abort".
    A stream without a token does not even contain that, as vLLM omits chunks without tokens. And
    calls that are running while the engine shuts down would wait for ever.

    Args:
        tracer: makes spans of requests, if there is one.
    """

    def __init__(
        self, engine: AsyncLLM, supervisor: EngineSupervisor, tracer: Tracer | None = None
    ) -> None:
        self._engine = engine
        self._supervisor = supervisor
        self._calls = HealedCalls(engine, supervisor)
        self._shutdown = engine.shutdown
        self._loop = asyncio.get_running_loop()
        self._promises = PromiseCounters()
        self._spans = _spans_of(tracer)
        self._structured_output = StructuredOutputCheck(engine.vllm_config, engine.get_tokenizer())
        engine.generate = self.generate
        engine.encode = self.encode
        engine.shutdown = self.shutdown

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        **options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """The engine's outputs; raises an error that vLLM puts into the response."""
        from vllm.exceptions import GracefulHTTPError
        from vllm.sampling_params import RequestOutputKind

        slo = await self._admit(sampling_params)
        is_delta = sampling_params.output_kind == RequestOutputKind.DELTA
        # A dummy promises nothing: the request that it stands for does.
        followed = BEST_EFFORT if slo.dummy else slo
        with self._followed(followed, request_id, options.get("trace_headers")) as promise:
            async with aclosing(
                self._calls.generate(slo, prompt, sampling_params, request_id, **options)
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
                    if not self._supervisor.is_stopped:
                        raise
                    raise failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
                except RequestDropped as error:
                    promise.end("dropped")
                    _raise_named(dropped_stop_reason(error.args[1]))

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[Any]:
        """The outputs of a model that does not generate."""
        return self._calls.encode(prompt, pooling_params, request_id, **options)

    @contextmanager
    def _followed(
        self, slo: Slo, request_id: str, headers: Mapping[str, str] | None
    ) -> Iterator[Promise]:
        """Count what becomes of a request, for the analyzer too; make its spans at its end."""
        start_ns = time.time_ns()
        try:
            with self._promises.follow(slo) as promise:
                yield promise
        finally:
            if (advised := advised_call()) is not None:
                advised.ended(
                    request_id,
                    prompt_tokens=promise.num_prompt_tokens,
                    output_tokens=promise.num_output_tokens,
                    is_complete=promise.is_complete,
                )
            if self._spans is not None:
                self._spans.record(promise, headers or {}, start_ns)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End running calls with an error, then the engine; vLLM calls this from another thread."""
        from vllm.exceptions import GracefulHTTPError

        if not self._supervisor.is_stopped:
            self._supervisor.stop()
            error = GracefulHTTPError("the server is stopping", HTTPStatus.SERVICE_UNAVAILABLE)
            processor = self._engine.output_processor
            self._loop.call_soon_threadsafe(processor.propagate_error, error)
        self._shutdown(*args, **kwargs)

    def close(self) -> None:
        """End the process that tries structured output."""
        self._structured_output.close()

    async def _admit(self, params: SamplingParams) -> Slo:
        if (advised := advised_call()) is not None:
            params.extra_args = await advised.completed(params.extra_args or {})
        set_key_tags(params)
        try:
            await self._structured_output.check(params.structured_outputs)
        except InvalidRequest as error:
            if has_tool_schema():
                reason = f"the schema made of the tools: {error.args[1]}"
                raise _refusal(400, reason, "tools") from error
            raise _refusal(400, error.args[1], "structured_outputs") from error
        except RequestFailed as error:
            raise failure(HTTPStatus.SERVICE_UNAVAILABLE, error.args[1]) from error
        slo = _slo_of(params)
        if not slo.dummy:  # its answer is a status, which must not have been sent before
            record_admission()
        return slo


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
    return failure(status, reason)


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

    if stop_reason == BEGUN_STOP_REASON:
        raise _refusal(BEGUN_STATUS, "its turn has come", "slo_dummy")
    error = error_of_stop_reason("", stop_reason)
    if isinstance(error, RequestDropped):
        record_error(DROPPED_STATUS, str(stop_reason))
        raise failure(DROPPED_STATUS, str(stop_reason))
    if error is not None:
        raise VLLMValidationError(str(stop_reason), parameter="vllm_xargs")
