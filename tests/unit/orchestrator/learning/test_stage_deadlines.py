"""The division of a run's deadline among its stages, and the SLOs of calls, without past runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Runtime, flow, within
from orchestrator.learning.stage_deadlines import (
    FALLBACK,
    LIMIT_RESOLUTION_S,
    MIN_REMAINING_S,
    RunTimes,
    StageDeadline,
    StageDeadlines,
    call_slo,
)
from orchestrator.testing import ScriptedEngine
from serving.slo import BEST_EFFORT, OnLate, SloKind, from_tags, to_tags
from tests.unit.orchestrator.orchestrator_samples import ask, law, recorded

moments = st.floats(0, 1e9)
lengths = st.floats(1e-9, 1e9)


def deadlines_for(deadline_at_s: float, stages: int | None) -> StageDeadlines:
    return StageDeadlines(deadline_at_s=deadline_at_s, expected_stages=stages)


@pytest.mark.parametrize("stages", [1, 2, 5, 40])
def test_a_deadline_is_divided_evenly_if_every_stage_ends_on_time(stages: int) -> None:
    deadlines = deadlines_for(100.0, stages)
    now_s = 0.0
    for stage in range(stages):
        now_s = deadlines.of(stage, now_s).at_s
        assert now_s == pytest.approx(100.0 * (stage + 1) / stages)


def test_time_that_a_stage_saved_or_lost_is_divided_among_later_stages() -> None:
    early, late = deadlines_for(100.0, 4), deadlines_for(100.0, 4)
    assert early.of(0, 0.0).at_s == late.of(0, 0.0).at_s == 25.0
    assert early.of(1, 10.0).at_s == 10.0 + 90.0 / 3
    assert late.of(1, 40.0).at_s == 40.0 + 60.0 / 3


def test_a_stage_keeps_the_sub_deadline_of_its_first_call() -> None:
    deadlines = deadlines_for(100.0, 4)
    first = deadlines.of(2, 30.0)
    assert deadlines.of(2, 70.0) == first
    assert first.source == FALLBACK


def test_stages_beyond_the_expected_number_get_all_remaining_time() -> None:
    deadlines = deadlines_for(100.0, 2)
    assert [deadlines.of(stage, 90.0).at_s for stage in (1, 2, 9)] == [100.0] * 3


@pytest.mark.parametrize("stages", [None, 0, 1, 7])
def test_a_run_without_deadline_has_stages_without_deadline(stages: int | None) -> None:
    assert deadlines_for(math.inf, stages).of(3, 5.0).at_s == math.inf


@law
@given(
    start_s=moments,
    length_s=lengths,
    stages=st.none() | st.integers(0, 50),
    steps=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), max_size=60),
)
def test_sub_deadlines_never_decrease_and_never_exceed_the_runs_deadline(
    start_s: float, length_s: float, stages: int | None, steps: list[tuple[int, float]]
) -> None:
    """Stages begin in order, since each depends on an earlier one; they may be skipped or late."""
    deadline_at_s = start_s + length_s
    deadlines = deadlines_for(deadline_at_s, stages)
    now_s, stage, before_s, started = start_s, 0, start_s, set[int]()
    for skipped, waited in steps:
        at_s = deadlines.of(stage, now_s).at_s
        assert before_s <= at_s <= deadline_at_s
        if stage not in started:
            assert at_s >= min(now_s, deadline_at_s)
        started.add(stage)
        before_s = at_s
        stage += skipped
        now_s += waited * length_s


@given(
    now_s=st.floats(-1e12, 1e12),
    at_s=st.floats(-1e12, 1e12) | st.just(math.inf),
    limit_at_s=st.floats(-1e12, 1e12) | st.just(math.inf),
    later_s=st.just(0.0) | st.floats(0, 1e12) | st.just(math.inf),
    stage=st.integers(0, 1 << 40),
    stage_calls=st.integers(1, 1 << 40),
    run_id=st.text(),
)
def test_an_slo_is_always_valid_and_within_the_deadline_around_the_call(
    now_s: float,
    at_s: float,
    limit_at_s: float,
    later_s: float,
    stage: int,
    stage_calls: int,
    run_id: str,
) -> None:
    run = RunTimes(now_s, deadline_at_s=limit_at_s + later_s)
    slo = call_slo(
        run_id=run_id,
        run=run,
        stage=stage,
        stage_calls=stage_calls,
        stage_deadline=StageDeadline(at_s, FALLBACK),
        limit_at_s=limit_at_s,
        now_s=now_s,
    )
    assert from_tags(to_tags(slo)) == slo
    if math.isinf(limit_at_s):
        assert slo == BEST_EFFORT
        return
    assert (slo.kind, slo.on_late) == (SloKind.COMPOUND, OnLate.CONTINUE)
    assert (slo.program != run_id) == (run.deadline_at_s - limit_at_s > LIMIT_RESOLUTION_S)
    assert (slo.stage, slo.stage_calls) == (stage, stage_calls)
    assert slo.deadline_s is not None
    assert slo.final_s is not None
    assert MIN_REMAINING_S <= slo.deadline_s <= slo.final_s
    assert slo.final_s == max(limit_at_s - now_s, MIN_REMAINING_S)


async def test_the_recorded_sub_deadline_is_the_one_sent_to_the_engine(runtime: Runtime) -> None:
    """Also within a shorter limit: law 3, a child's deadline never exceeds its parent's."""

    async def body() -> None:
        await ask()
        async with within("10s"):
            await ask()

    result = await runtime.run(flow(deadline="1h", stages=2)(body))
    record = await recorded(runtime.store, result.run_id)
    engine = runtime.engine
    assert isinstance(engine, ScriptedEngine)
    for call, request in zip(record.calls, engine.requests, strict=True):
        assert call.sub_deadline_s is not None
        assert request.slo.deadline_s == pytest.approx(
            call.sub_deadline_s - call.started_s, abs=0.5
        )
    assert record.calls[0].sub_deadline_s == pytest.approx(1800, abs=5)
    assert record.calls[1].sub_deadline_s == pytest.approx(10, abs=5)
    assert [stage.sub_deadline_s for stage in result.stages] == [
        call.sub_deadline_s for call in record.calls
    ]


async def test_a_run_without_deadline_sends_and_records_no_sub_deadline(runtime: Runtime) -> None:
    result = await runtime.run(flow(ask))
    [call] = (await recorded(runtime.store, result.run_id)).calls
    assert (call.sub_deadline_s, call.deadline_source) == (None, None)
    assert isinstance(runtime.engine, ScriptedEngine)
    assert runtime.engine.requests[0].slo == BEST_EFFORT
    assert result.in_time
