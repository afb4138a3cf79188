"""Telemetry: exports OpenTelemetry spans, according to the standard OTEL_* variables.

Imported only if ORCHESTRATE_TELEMETRY is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Tracer

from orchestrator.errors import InvalidSettings
from orchestrator.telemetry.spans import RunSpans

logger = logging.getLogger("orchestrate")

FLUSH_LIMIT_S = 4.5
"""Seconds that the end of a runtime waits for the last spans to be exported."""

ABORT_LIMIT_S = 0.5
"""Seconds that it waits, after that, for all exporters to shut down."""

EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class open_tracer:  # noqa: N801 - a context manager; not an async generator, see enter_runtime
    """A tracer; its spans have been exported when the block ends.

    The application's own tracer provider is used if it has set one, else one according to the
    OTEL_* variables. An unreachable collector delays the end by at most
    FLUSH_LIMIT_S + ABORT_LIMIT_S, and is no error.

    Args:
        service: the name of this process in traces, unless OTEL_SERVICE_NAME gives one.
    Raises:
        InvalidSettings: an OTEL_* variable names an unknown exporter, or one that cannot be used.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    async def __aenter__(self) -> Tracer:
        provider, self._exporters = trace.get_tracer_provider(), list[SpanExporter]()
        is_ours = isinstance(provider, trace.ProxyTracerProvider)
        if is_ours:
            self._exporters = _exporters()
            provider = _provider_of(self._exporters, self._service)
        self._flush = getattr(provider, "shutdown" if is_ours else "force_flush", None)
        return provider.get_tracer("orchestrate")

    async def __aexit__(self, *_: object) -> None:
        if self._flush is None or await _ends_within(self._flush, FLUSH_LIMIT_S):
            return
        logger.warning("telemetry: the last spans were not exported within %s s", FLUSH_LIMIT_S)
        for exporter in self._exporters:
            await _ends_within(exporter.shutdown, ABORT_LIMIT_S / len(self._exporters))


class open_telemetry:  # noqa: N801 - as `open_tracer`
    """A listener that makes spans of runs, with the tracer of `open_tracer`."""

    async def __aenter__(self) -> RunSpans:
        self._tracer = open_tracer("orchestrate")
        self._spans = RunSpans(await self._tracer.__aenter__())
        return self._spans

    async def __aexit__(self, *error: object) -> None:
        self._spans.close()
        await self._tracer.__aexit__(*error)


def _provider_of(exporters: Sequence[SpanExporter], service: str) -> trace.TracerProvider:
    if not exporters:
        return trace.NoOpTracerProvider()
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME)).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        try:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        except ValueError as error:
            raise InvalidSettings(f"OTEL_BSP_*: {error}") from error
    return provider


def _exporters() -> list[SpanExporter]:
    """The exporters that OTEL_TRACES_EXPORTER names, otlp by default; none for "none"."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    names = [name.strip() for name in os.environ.get(EXPORTER, "").split(",") if name.strip()]
    return [_exporter(name) for name in names or ["otlp"] if name.lower() != "none"]


def _exporter(name: str) -> SpanExporter:
    group = entry_points(group="opentelemetry_traces_exporter")
    found = tuple(group.select(name=_otlp() if name == "otlp" else name))
    if not found:
        known = ", ".join(sorted({*group.names, "none"}))
        raise InvalidSettings(f"{EXPORTER}: no exporter {name!r} is installed; known are: {known}")
    try:
        exporter: SpanExporter = found[0].load()()
    except Exception as error:  # its constructor reads other OTEL_* variables
        raise InvalidSettings(
            f"{EXPORTER}: {name} cannot be used: {type(error).__name__}: {error}"
        ) from error
    return exporter


def _otlp() -> str:
    """The SDK's name of the OTLP exporter for the protocol that is asked for."""
    for variable in _PROTOCOLS:
        protocol = os.environ.get(variable, "").strip()
        if protocol:
            if protocol not in _OTLP:
                raise InvalidSettings(f"{variable}: {protocol!r} is none of {', '.join(_OTLP)}")
            return _OTLP[protocol]
    return "otlp"


async def _ends_within(work: Callable[[], object], limit_s: float) -> bool:
    """Run blocking work in a daemon thread; returns whether it ended within `limit_s`.

    An error of the work is logged. After the limit the thread is abandoned; it blocks neither the
    event loop nor the exit of the process.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        except Exception:
            logger.exception("telemetry: the last spans were not exported")
        with suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="orchestrate-telemetry", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await ended.wait()
    return ended.is_set()
