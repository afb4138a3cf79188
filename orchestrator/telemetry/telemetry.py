"""Telemetry: runs told of in OpenTelemetry spans, exported as the standard OTEL_* variables say.

Loaded only where ORCHESTRATE_TELEMETRY asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from orchestrator.errors import InvalidSettings
from orchestrator.events import Listener
from orchestrator.telemetry.spans import RunSpans

logger = logging.getLogger("orchestrate")

FLUSH_LIMIT_S = 4.5
"""How long the end of a runtime waits for the last spans to be exported."""

ABORT_LIMIT_S = 0.5
"""How long it waits, after that, for exporters that are told to give up."""

EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


@asynccontextmanager
async def open_telemetry() -> AsyncIterator[Listener]:
    """A listener that tells of runs in spans; what it told is exported when the block ends.

    The application's own tracer provider is used where it has set one, else one that exports as
    the OTEL_* variables say. A collector that is out of reach holds up the end for
    FLUSH_LIMIT_S + ABORT_LIMIT_S at most, and fails nothing.

    Raises:
        InvalidSettings: an OTEL_* variable names an exporter that there is not, or cannot be used.
    """
    provider, exporters = trace.get_tracer_provider(), list[SpanExporter]()
    own = isinstance(provider, trace.ProxyTracerProvider)
    if own:
        exporters = _exporters()
        provider = _provider_of(exporters)
    spans = RunSpans(provider.get_tracer("orchestrate"))
    try:
        yield spans
    finally:
        spans.close()
        flush = getattr(provider, "shutdown" if own else "force_flush", None)
        if flush is not None and not await _in_time(flush, FLUSH_LIMIT_S):
            logger.warning("telemetry: the last spans were not exported within %s s", FLUSH_LIMIT_S)
            for exporter in exporters:
                await _in_time(exporter.shutdown, ABORT_LIMIT_S / len(exporters))


def _provider_of(exporters: Sequence[SpanExporter]) -> trace.TracerProvider:
    if not exporters:
        return trace.NoOpTracerProvider()
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME)).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "orchestrate"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        try:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        except ValueError as error:
            raise InvalidSettings(f"OTEL_BSP_*: {error}") from error
    return provider


def _exporters() -> list[SpanExporter]:
    """The exporters that OTEL_TRACES_EXPORTER names, otlp by default; none where it says so."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    names = [name.strip() for name in os.environ.get(EXPORTER, "").split(",") if name.strip()]
    return [_exporter(name) for name in names or ["otlp"] if name.lower() != "none"]


def _exporter(name: str) -> SpanExporter:
    group = entry_points(group="opentelemetry_traces_exporter")
    found = tuple(group.select(name=_otlp() if name == "otlp" else name))
    if not found:
        known = ", ".join(sorted({*group.names, "none"}))
        raise InvalidSettings(f"{EXPORTER}: no exporter {name!r} is installed; there are: {known}")
    try:
        exporter: SpanExporter = found[0].load()()
    except Exception as error:  # it read other OTEL_* variables
        raise InvalidSettings(
            f"{EXPORTER}: {name} cannot be used: {type(error).__name__}: {error}"
        ) from error
    return exporter


def _otlp() -> str:
    """The exporter that speaks the protocol which is asked for, as the SDK itself has them."""
    for variable in _PROTOCOLS:
        protocol = os.environ.get(variable, "").strip()
        if protocol:
            if protocol not in _OTLP:
                raise InvalidSettings(f"{variable}: {protocol!r} is none of {', '.join(_OTLP)}")
            return _OTLP[protocol]
    return "otlp"


async def _in_time(work: Callable[[], object], limit_s: float) -> bool:
    """Whether work that blocks ended in time; it is left behind where not, and logged if it fails.

    In a thread that holds up neither the event loop nor the exit.
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
