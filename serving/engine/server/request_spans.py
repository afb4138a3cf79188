"""OpenTelemetry spans of requests in the engine, under the trace of their clients.

Imported only with a tracer: OpenTelemetry is an optional extra.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serving.engine.server.promises import Promise, Stats
from serving.slo import SloKind

_TRACE_CONTEXT = TraceContextTextMapPropagator()  # the headers traceparent and tracestate

_FAILURES = ("dropped", "failed")


class RequestSpans:
    """Makes a span "generate" for each request, with one for each of its phases."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def record(self, promise: Promise, headers: Mapping[str, str], start_ns: int) -> None:
        """Make the spans of a request that has just ended.

        Args:
            headers: traceparent and tracestate of the request, if it has them.
            start_ns: when the engine received it, in nanoseconds since 1970.
        """
        parent, end_ns = _TRACE_CONTEXT.extract(headers), time.time_ns()
        span = self._tracer.start_span(
            "generate", parent, SpanKind.SERVER, attributes_of(promise), start_time=start_ns
        )
        if promise.ended in _FAILURES:
            span.set_status(StatusCode.ERROR)  # without a message, which may quote a user's text
        context = set_span_in_context(span)
        for name, seconds in phases_of(promise.stats):
            phase = self._tracer.start_span(name, context, start_time=start_ns)
            # The engine's clock is not that of this process, so that only its intervals are used.
            start_ns = min(start_ns + round(seconds * 1e9), end_ns)
            phase.end(start_ns)
        span.end(end_ns)


def phases_of(stats: Stats | None) -> list[tuple[str, float]]:
    """Names and seconds of what a request went through: "queue", "prefill" and "decode".

    A request that ended without a token has a queue only; one of which the engine has told nothing
    has no phases. Of several answers these are the phases of the last one. Time after a preemption
    counts for the phase that was interrupted.
    """
    if stats is None or not stats.scheduled_ts:
        return []
    phases = [("queue", stats.scheduled_ts - stats.queued_ts)]
    if stats.num_generation_tokens:
        phases.append(("prefill", stats.first_token_ts - stats.scheduled_ts))
        phases.append(("decode", stats.last_token_ts - stats.first_token_ts))
    return phases


def attributes_of(promise: Promise) -> dict[str, str | int | float]:
    """The attributes of a request's span; none of them holds a prompt or an answer."""
    slo, stats = promise.slo, promise.stats
    attributes: dict[str, str | int | float] = {
        "orchestrate.slo_kind": slo.kind.value,
        "orchestrate.outcome": promise.ended,
        "gen_ai.usage.output_tokens": promise.num_output_tokens,
    }
    if slo.program:
        attributes["orchestrate.run_id"] = slo.program
    if promise.is_complete and slo.kind is not SloKind.BEST_EFFORT:
        attributes["orchestrate.slack_s"] = promise.slack_s()
    if stats is not None:
        attributes["orchestrate.preemptions"] = stats.num_preemptions
    return attributes
