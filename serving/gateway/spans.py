"""OpenTelemetry spans of requests in the gateway, under the trace of their clients.

Imported only with a tracer: OpenTelemetry is an optional extra.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACE_CONTEXT = TraceContextTextMapPropagator()  # the headers traceparent and tracestate

FIRST_ERROR_STATUS = 500
"""From this status on a span has failed; below it the server is not at fault."""


class RequestSpan:
    """The span "gateway" of a request, from its arrival to the end of its answer.

    Args:
        headers: those of the request, by names in any case; they may say of which span it is.
    """

    def __init__(self, tracer: Tracer, headers: Mapping[str, str], path: str) -> None:
        self._tracer = tracer
        self._num_attempts = 0
        parent = _TRACE_CONTEXT.extract(headers)
        self._span = tracer.start_span("gateway", parent, SpanKind.SERVER, {"url.path": path})

    def attempt(self, replica: str) -> AttemptSpan:
        """Begin the span of an attempt at a replica."""
        self._num_attempts += 1
        context = set_span_in_context(self._span)
        attributes = {"orchestrate.replica": replica}
        return AttemptSpan(self._tracer.start_span("attempt", context, SpanKind.CLIENT, attributes))

    def end(self, status: int | None) -> None:
        """End the span.

        Args:
            status: of the answer; None: the client has gone.
        """
        self._span.set_attribute("orchestrate.retries", max(self._num_attempts - 1, 0))
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= FIRST_ERROR_STATUS:
                self._span.set_status(StatusCode.ERROR)
        self._span.end()


class AttemptSpan:
    """The span "attempt" of a request that is sent to one replica.

    Attributes:
        headers: what tells the replica that its spans are children of this one.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: dict[str, str] = {}
        _TRACE_CONTEXT.inject(self.headers, set_span_in_context(span))

    def sent(self, spent_s: float) -> None:
        """The request is sent, after this time in the gateway."""
        self._span.set_attribute("orchestrate.gateway_s", spent_s)

    def end(self, outcome: str, *, failed: bool) -> None:
        """End the span."""
        self._span.set_attribute("orchestrate.outcome", outcome)
        if failed:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
