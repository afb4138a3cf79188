"""Spans as tests read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer, format_span_id, format_trace_id


class SeenSpan(NamedTuple):
    """A span that was exported.

    Attributes:
        trace_id, span_id, parent_id: in hexadecimal digits; parent_id is "" without a parent.
        start_ns, end_ns: nanoseconds since 1970.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    has_failed: bool = False

    def has_sent(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers is of this span."""
        return headers["traceparent"].split("-")[1:3] == [self.trace_id, self.span_id]


def traceparent(trace_id: str, span_id: str) -> str:
    """The W3C header of a sampled span."""
    return f"00-{trace_id}-{span_id}-01"


def children_of(parent_id: str, spans: Iterable[SeenSpan]) -> list[SeenSpan]:
    """The spans directly under another one, by their start."""
    found = (span for span in spans if span.parent_id == parent_id)
    return sorted(found, key=lambda span: span.start_ns)


class Spans:
    """A provider of tracers, and the spans that were exported of it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("tests")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, as the SDK has them."""
        return self._exporter.get_finished_spans()

    def seen(self) -> list[SeenSpan]:
        """The spans that have ended."""
        return [
            SeenSpan(
                span.name,
                format_trace_id(span.context.trace_id),
                format_span_id(span.context.span_id),
                format_span_id(span.parent.span_id) if span.parent else "",
                span.start_time or 0,
                span.end_time or 0,
                dict(span.attributes or {}),
                not span.status.is_ok and not span.status.is_unset,
            )
            for span in self.spans
        ]


def spans_of_message(message: bytes) -> list[SeenSpan]:
    """The spans in the body of a request to an OTLP collector, by protobuf over HTTP."""
    export = ExportTraceServiceRequest.FromString(message)
    return [
        SeenSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {each.key: _value_of(each.value) for each in span.attributes},
            span.status.code == span.status.STATUS_CODE_ERROR,
        )
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
