"""OpenTelemetry spans of runs: names, attributes and parents; none holds a user's text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from orchestrator import embed, flow, gather, llm, step, tool
from orchestrator.errors import DeadlineExceeded
from orchestrator.events import (
    CallFinished,
    CallStarted,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
)
from orchestrator.telemetry.spans import RunSpans
from orchestrator.testing import ScriptedEngine
from tests.spans import Spans
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    answer_ok,
    ask,
    recorded,
    scripted_runtime,
)
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time

pytestmark = pytest.mark.usefixtures("clean_environment")

SECRET = "xyzzy"


class Traces(Spans):
    """Exported spans, by the path of their step or call; "" is the run."""

    def by_path(self) -> dict[str, ReadableSpan]:
        return {
            str((span.attributes or {}).get("orchestrate.path", "")): span for span in self.spans
        }

    def parent_of(self, path: str) -> str:
        """The path of a span's parent."""
        spans = self.by_path()
        parent = spans[path].parent
        assert parent is not None
        [parent_path] = [each for each in spans if spans[each].get_span_context() == parent]
        return parent_path


@pytest.fixture
def traces() -> Traces:
    return Traces()


@tool(effects="pure")
async def search(words: str) -> str:
    return await llm(words)


@step
async def research(words: str) -> str:
    text = await search(words)
    return await ask(text)


def call_started(
    node: int = 0, path: str = "llm", sub_deadline_s: float | None = None
) -> CallStarted:
    return CallStarted(
        "r",
        node,
        "llm",
        "m:f",
        2,
        0.5,
        sub_deadline_s,
        sub_deadline_source=None if sub_deadline_s is None else "learned",
        path=path,
        engine="embedded",
        model="m",
        predicted_output_tokens=91.0,
    )


async def test_a_call_has_a_span_with_the_conventions_attributes_and_its_sub_deadline(
    tmp_path: Path, traces: Traces
) -> None:
    async with scripted_runtime(tmp_path, on_event=RunSpans(traces.tracer)) as runtime:
        result = await runtime.run(flow(name="f", deadline="1h")(ask))
        [call] = (await recorded(runtime.store, result.run_id)).calls
    run, chat = traces.by_path()[""], traces.by_path()["ask/llm"]
    assert call.sub_deadline_s is not None
    assert chat.attributes is not None
    slack_s = chat.attributes["orchestrate.slack_s"]
    bound = {"orchestrate.predicted_output_tokens": call.length_bound}
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "script",
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "orchestrate.run_id": result.run_id,
        "orchestrate.path": "ask/llm",
        "orchestrate.stage": 0,
        "orchestrate.sub_deadline_s": call.sub_deadline_s,
        "orchestrate.sub_deadline_source": "fallback",
        "orchestrate.slack_s": pytest.approx(call.sub_deadline_s, abs=60),
        "orchestrate.status": "completed",
        **({} if call.length_bound is None else bound),
    }
    assert isinstance(slack_s, float)
    assert (chat.name, chat.kind) == ("chat script", SpanKind.CLIENT)
    assert chat.status.status_code is StatusCode.UNSET
    assert run.name == "invoke_workflow f"
    assert dict(run.attributes or {}) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "f",
        "orchestrate.run_id": result.run_id,
        "orchestrate.deadline_s": 3600.0,
        "orchestrate.slack_s": 3600.0 - result.elapsed_s,
        "orchestrate.status": "completed",
    }


async def test_each_span_is_a_child_of_the_step_or_tool_around_its_path(
    tmp_path: Path, traces: Traces
) -> None:
    async def body() -> None:
        await ask()
        await gather(research("a"), research("b"), ask())
        await gather(gather(ask(), ask()), research("c"))

    engine = ScriptedEngine(answer_ok, token_s=0.001)  # so that the branches interleave
    async with scripted_runtime(tmp_path, engine, on_event=RunSpans(traces.tracer)) as runtime:
        await runtime.run(flow(name="f")(body))
    paths = traces.by_path().keys() - {""}
    assert len(paths) == len(traces.spans) - 1 == 3 * 6 - 3 + 4 * 2
    for path in paths:
        assert traces.parent_of(path) == path.rpartition("/")[0]
    assert len({trace_of(span) for span in traces.spans}) == 1
    names = {path.rpartition("/")[2]: span.name for path, span in traces.by_path().items()}
    assert names["search"] == "execute_tool search"
    assert names["research[0]"] == "research"
    searching = traces.by_path()["research[0]/search"]
    assert searching.kind is SpanKind.INTERNAL
    assert searching.attributes is not None
    assert searching.attributes["gen_ai.operation.name"] == "execute_tool"
    assert searching.attributes["gen_ai.tool.name"] == "search"
    assert not any(name.startswith("gen_ai.usage") for name in searching.attributes)


async def test_concurrent_runs_have_separate_traces(tmp_path: Path, traces: Traces) -> None:
    engine = ScriptedEngine(answer_ok, token_s=0.001)
    async with scripted_runtime(tmp_path, engine, on_event=RunSpans(traces.tracer)) as runtime:
        results = await asyncio.gather(*(runtime.run(flow(research), "a") for _ in range(3)))
    pairs = {(trace_of(span), run_of(span)) for span in traces.spans}
    assert {run for _, run in pairs} == {result.run_id for result in results}
    assert len(pairs) == 3


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def run_of(span: ReadableSpan) -> str:
    return str((span.attributes or {})["orchestrate.run_id"])


async def test_a_runs_parent_is_the_current_span_where_it_was_started(
    tmp_path: Path, traces: Traces
) -> None:
    async with scripted_runtime(tmp_path, on_event=RunSpans(traces.tracer)) as runtime:
        with traces.tracer.start_as_current_span("request") as request:
            handle = runtime.start(flow(ask))
        await handle
    [run] = [span for span in traces.spans if span.name.startswith("invoke_workflow")]
    assert run.parent == request.get_span_context()


async def test_a_failed_span_has_the_class_of_the_error_and_no_message(
    tmp_path: Path, traces: Traces
) -> None:
    def refuse(_: object) -> str:
        raise Boom(SECRET)

    engine = ScriptedEngine(refuse)
    async with scripted_runtime(tmp_path, engine, on_event=RunSpans(traces.tracer)) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(research), SECRET)
    assert traces.by_path().keys() == {"", "research", "research/search", "research/search/llm"}
    for span in traces.spans:
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description is None
        assert not span.events
        assert (span.attributes or {})["error.type"] == "Boom"
        assert (span.attributes or {})["orchestrate.status"] == "failed"


async def test_no_span_contains_a_prompt_an_answer_or_an_error_message(
    tmp_path: Path, traces: Traces
) -> None:
    engine = ScriptedEngine(lambda _: f"the answer is {SECRET}")

    async def body(words: str) -> str:
        await ask(words)
        raise Boom(f"{words}: {SECRET}")

    async with scripted_runtime(
        tmp_path, engine, record_text=True, on_event=RunSpans(traces.tracer)
    ) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(name="f")(body), SECRET)
        await runtime.run(flow(research), SECRET)
    assert len(traces.spans) == 3 + 6
    assert not any(SECRET in span.to_json() for span in traces.spans)


def test_slack_is_zero_for_a_call_cut_off_at_the_deadline_and_negative_for_a_later_end(
    tmp_path: Path, traces: Traces
) -> None:
    async def tidy(text: str) -> str:
        try:
            return await research(text)
        finally:
            await asyncio.sleep(1)

    async def run() -> None:
        engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
        spans = RunSpans(traces.tracer)
        async with scripted_runtime(tmp_path, engine, clock=LoopClock(), on_event=spans) as runtime:
            with pytest.raises(DeadlineExceeded):
                await runtime.run(flow(name="f", deadline=10)(tidy), "a")

    run_in_virtual_time(run())
    spans = traces.by_path()
    run, call = spans[""].attributes, spans["research/search/llm"].attributes
    assert run is not None
    assert call is not None
    assert (run["orchestrate.status"], run["error.type"]) == ("failed", "DeadlineExceeded")
    assert (call["orchestrate.status"], call["error.type"]) == ("cancelled", "CancelledError")
    assert "gen_ai.usage.output_tokens" not in call
    assert call["orchestrate.slack_s"] == pytest.approx(0, abs=1e-6)
    assert run["orchestrate.slack_s"] == pytest.approx(-1, abs=1e-6)


def test_slack_is_the_sub_deadline_minus_the_end_and_absent_without_a_sub_deadline(
    traces: Traces,
) -> None:
    spans = RunSpans(traces.tracer)
    spans(RunStarted("r", "f", None))
    spans(call_started(0, "llm", sub_deadline_s=1.0))
    spans(call_started(1, "llm#2"))
    spans(CallFinished("r", 1, 2, "completed", 1.5, 7))
    spans(CallFinished("r", 0, 2, "completed", 3.5, 7))
    spans(RunFinished("r", "completed", 4.0))
    late, free = traces.by_path()["llm"], traces.by_path()["llm#2"]
    assert late.attributes is not None
    assert late.attributes["orchestrate.slack_s"] == -2.5
    assert late.attributes["orchestrate.sub_deadline_source"] == "learned"
    assert late.attributes["orchestrate.predicted_output_tokens"] == 91.0
    assert late.attributes["gen_ai.provider.name"] == "vllm"
    assert late.kind is SpanKind.INTERNAL  # the embedded engine is in this process
    for span in (free, traces.by_path()[""]):
        assert not any("slack" in name or "deadline" in name for name in span.attributes or {})


def test_spans_that_are_open_at_the_end_of_their_run_are_ended_as_running(traces: Traces) -> None:
    spans = RunSpans(traces.tracer)
    spans(RunStarted("r", "f", None))
    spans(StepStarted("r", "ask", "ask", 0.1))
    spans(call_started(0, "ask/llm"))
    spans(RunFinished("r", "completed", 1.0))
    assert [span.name for span in traces.spans] == ["chat m", "ask", "invoke_workflow f"]
    for path in ("ask", "ask/llm"):
        assert (traces.by_path()[path].attributes or {})["orchestrate.status"] == "running"
    spans(CallFinished("r", 0, 2, "cancelled", 2.0, 0))
    spans(StepFinished("r", "ask", "cancelled", 2.0))
    spans(StepStarted("r", "late", "late", 3.0))
    assert len(traces.spans) == 3
    assert not spans._runs


def test_a_span_that_begins_after_its_steps_end_is_still_its_child(traces: Traces) -> None:
    spans = RunSpans(traces.tracer)
    spans(RunStarted("r", "f", None))
    spans(StepStarted("r", "ask", "ask", 0.1))
    spans(StepFinished("r", "ask", "completed", 0.2))
    spans(call_started(0, "ask/unheard-of/llm"))
    spans(call_started(1, "unheard-of/llm"))
    spans.close()
    assert traces.parent_of("ask/unheard-of/llm") == "ask"
    assert traces.parent_of("unheard-of/llm") == ""


def test_a_run_without_a_finish_event_is_ended_by_a_restart_or_by_close(
    traces: Traces,
) -> None:
    spans = RunSpans(traces.tracer)
    spans(RunStarted("r", "f", 9.0))
    spans(call_started())
    spans(RunStarted("r", "f", 9.0))
    assert len(traces.spans) == 2
    spans.close()
    assert len(traces.spans) == 3


async def test_spans_name_the_engine_of_a_call_and_the_model_of_embeddings(
    tmp_path: Path, traces: Traces
) -> None:
    @flow
    async def two_engines() -> None:
        await llm(SECRET, engine="judge")
        await embed([SECRET], engine="judge")

    judge = ScriptedEngine(answer_ok, model="large")
    listener = RunSpans(traces.tracer)
    async with scripted_runtime(tmp_path, on_event=listener, engines={"judge": judge}) as runtime:
        await runtime.run(two_engines)
    spans = traces.by_path()
    assert (spans["llm"].name, spans["embed"].name) == ("chat large", "embeddings large")
    for path, operation in (("llm", "chat"), ("embed", "embeddings")):
        attributes = dict(spans[path].attributes or {})
        assert attributes["gen_ai.operation.name"] == operation
        assert attributes["gen_ai.request.model"] == "large"
        assert attributes["orchestrate.engine"] == "judge"
        assert SECRET not in str(attributes)
