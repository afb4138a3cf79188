"""Spans of requests in the engine: one for each, and one for each phase that it came to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server.promises import Promise
from serving.engine.server.request_spans import RequestSpans
from serving.slo import Slo, SloKind
from tests.spans import SeenSpan, Spans, children_of, traceparent

TRACE, CALLER = "ab" * 16, "cd" * 8
SECOND_NS = 10**9


@dataclass
class Measured:
    """What vLLM measured, by a clock of its own."""

    queued_ts: float = 1000.0
    scheduled_ts: float = 1001.0
    first_token_ts: float = 1003.0
    last_token_ts: float = 1008.0
    num_generation_tokens: int = 9
    num_preemptions: int = 1


def recorded(
    ended: str, stats: Measured | None, slo: Slo | None = None
) -> tuple[SeenSpan, list[SeenSpan]]:
    """The span of a request that began ten seconds ago, and those of its phases."""
    spans = Spans()
    promise = Promise(slo or Slo(kind=SloKind.DEADLINE, deadline_s=30.0), lambda: 50.0)
    if stats is not None:
        answers: Any = [SimpleNamespace(index=index, token_ids=[0] * 9) for index in range(2)]
        output: Any = SimpleNamespace(prompt_token_ids=[0], outputs=answers, metrics=stats)
        promise.observe(output, is_delta=True)
    promise.end(ended)
    headers = {"traceparent": traceparent(TRACE, CALLER)}
    RequestSpans(spans.tracer).record(promise, headers, time.time_ns() - 10 * SECOND_NS)
    [request] = children_of(CALLER, spans.seen())
    assert request.trace_id == TRACE
    return request, children_of(request.span_id, spans.seen())


def test_the_phases_of_a_request_follow_each_other_from_its_arrival() -> None:
    request, phases = recorded("completed", Measured())
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    seconds = [(phase.end_ns - phase.start_ns) / SECOND_NS for phase in phases]
    assert seconds == [1.0, 2.0, 5.0]
    starts = [phase.start_ns for phase in phases]
    assert starts == [request.start_ns, phases[0].end_ns, phases[1].end_ns]
    assert request.end_ns - request.start_ns >= 10 * SECOND_NS


def test_a_span_says_what_became_of_the_promise() -> None:
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=10.0, final_s=30.0, program="run-1")
    request, _ = recorded("completed", Measured(), slo)
    assert request.name == "generate"
    assert request.attributes == {
        "orchestrate.slo_kind": "compound",
        "orchestrate.outcome": "completed",
        "orchestrate.run_id": "run-1",
        "orchestrate.slack_s": 30.0,
        "orchestrate.preemptions": 1,
        "gen_ai.usage.output_tokens": 18,
    }


@pytest.mark.parametrize("ended", ["dropped", "failed", "cancelled"])
def test_a_request_that_ended_without_a_token_was_in_the_queue_only(ended: str) -> None:
    stats = Measured(num_generation_tokens=0)
    request, phases = recorded(ended, stats)
    assert [phase.name for phase in phases] == ["queue"]
    assert request.has_failed == (ended != "cancelled")
    assert "orchestrate.slack_s" not in request.attributes


@pytest.mark.parametrize("stats", [None, Measured(scheduled_ts=0.0, num_generation_tokens=0)])
def test_a_request_of_which_the_engine_has_told_nothing_has_no_phases(
    stats: Measured | None,
) -> None:
    assert recorded("cancelled", stats)[1] == []


def test_no_phase_ends_after_its_request() -> None:
    request, phases = recorded("completed", Measured(last_token_ts=5000.0))
    assert phases[-1].end_ns == request.end_ns


def test_a_request_without_an_slo_has_no_slack() -> None:
    request, phases = recorded("completed", Measured(), Slo())
    assert "orchestrate.slack_s" not in request.attributes
    assert len(phases) == 3
