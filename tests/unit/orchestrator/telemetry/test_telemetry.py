"""The export of OpenTelemetry spans according to the environment; it disturbs no run."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry import trace

from orchestrator import Settings, flow, llm, open_runtime, step
from orchestrator.errors import InvalidSettings
from orchestrator.events import RunFinished, RunStarted
from orchestrator.openai_client import slo_http_client
from orchestrator.telemetry import telemetry
from orchestrator.telemetry.telemetry import open_telemetry
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from tests.spans import Spans
from tests.unit.orchestrator.orchestrator_samples import answer_ok, ask, store_url
from tests.unit.orchestrator.slo_http.model_servers import URL, ModelServer

pytestmark = pytest.mark.usefixtures("clean_environment")


def runtime_settings(folder: Path) -> Settings:
    return Settings(store=store_url(folder), telemetry=True, fit_every=0)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_TRACES_EXPORTER", "unheard-of", "'unheard-of' is installed; known are: console, "),
        ("OTEL_TRACES_EXPORTER", "none, unheard-of", "no exporter 'unheard-of'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon", "'pigeon' is none of grpc, http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "otlp cannot be used: ValueError"),
    ],
)
async def test_an_invalid_variable_is_reported_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    engine = ScriptedEngine(answer_ok)
    with pytest.raises(InvalidSettings, match="OTEL_") as refused:
        async with open_runtime(runtime_settings(tmp_path), engine=engine):
            pass
    assert message in str(refused.value)
    assert engine.num_starts == 0
    assert engine.is_closed


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")]
)
async def test_the_standard_variables_can_disable_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "unheard-of")
    monkeypatch.setenv(variable, value)
    async with open_runtime(runtime_settings(tmp_path), engine=ScriptedEngine(answer_ok)) as opened:
        assert (await opened.run(flow(ask))).value == "all is well"


async def test_a_collector_that_does_not_answer_delays_the_end_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "FLUSH_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        with caplog.at_level(logging.WARNING, "orchestrate"):
            async with open_telemetry() as listener:
                listener(RunStarted("r", "f", None))
                listener(RunFinished("r", "completed", 1.0))
                began_s = time.monotonic()
            took_s = time.monotonic() - began_s
    assert 0.2 <= took_s < 1.5
    assert "not exported within 0.2 s" in caplog.text


async def test_requests_to_servers_say_that_they_are_of_the_span_of_their_call_or_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, asked = Spans(), list[GenerationRequest]()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    server = ModelServer()
    client = slo_http_client(transport=server.async_transport())

    def answer(request: GenerationRequest) -> str:
        asked.append(request)
        return "hi"

    @step
    async def search() -> None:
        await client.post(f"{URL}/chat/completions", json={})

    @flow
    async def answering() -> None:
        await search()
        await llm("hello")

    async with open_runtime(runtime_settings(tmp_path), engine=ScriptedEngine(answer)) as opened:
        await opened.run(answering)
    span_of = {span.attributes.get("orchestrate.path"): span for span in spans.seen()}
    assert span_of["llm"].has_sent(asked[0].trace_headers)
    assert span_of["search"].has_sent(server.headers[-1])


def in_a_process(code: str, folder: Path, **variables: str) -> str:
    """The output of a process in which `main` runs a flow on a scripted engine."""
    program = f"""
import asyncio, sys
from pathlib import Path
from orchestrator import Settings, flow, open_runtime, read_settings
from orchestrator.testing import ScriptedEngine

@flow
async def greet() -> str:
    from orchestrator import llm
    return await llm("hello")

async def main() -> None:
    async with open_runtime(read_settings(), engine=ScriptedEngine(lambda _: "hi")):
        await greet()
{code}
"""
    environment = {
        **os.environ,
        "ORCHESTRATE_STORE": store_url(folder),
        "ORCHESTRATE_FIT_EVERY": "0",
        **variables,
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.usefixtures("subprocesses")
def test_opentelemetry_is_imported_only_if_telemetry_is_enabled(tmp_path: Path) -> None:
    code = "asyncio.run(main()); print([n for n in sys.modules if n.startswith('opentelemetry')])"
    assert in_a_process(code, tmp_path).strip() == "[]"


@pytest.mark.usefixtures("subprocesses")
def test_all_spans_are_exported_when_the_runtime_ends(
    tmp_path: Path,
) -> None:
    printed = in_a_process(
        "asyncio.run(main())",
        tmp_path,
        ORCHESTRATE_TELEMETRY="1",
        OTEL_TRACES_EXPORTER="console",
    )
    assert '"name": "invoke_workflow greet"' in printed
    assert '"name": "chat script"' in printed
    assert '"service.name": "orchestrate"' in printed


@pytest.mark.usefixtures("subprocesses")
def test_the_applications_own_tracer_provider_is_used_and_left_open(tmp_path: Path) -> None:
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
asyncio.run(main())
asyncio.run(main())
print([span.name for span in exporter.get_finished_spans()])
"""
    printed = in_a_process(
        code, tmp_path, ORCHESTRATE_TELEMETRY="1", OTEL_TRACES_EXPORTER="unheard-of"
    )
    assert printed.strip() == str(["chat script", "invoke_workflow greet"] * 2)


def test_no_global_tracer_provider_is_set() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
