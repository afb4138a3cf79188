"""Deadlines that are shorter than every past run are reported before the run starts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import DeadlineInfeasible, Runtime, flow, tool
from orchestrator.learning.feasibility import MIN_RUNS, check_feasible, learned_bound
from orchestrator.testing import VirtualClock
from patterns.library import KeptPattern, PatternLibrary
from patterns.nodes import ToolNode
from patterns.stages import summarise
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


def library(*runs_s: list[float]) -> PatternLibrary:
    """A library of past runs, given by the seconds of their stages."""
    return PatternLibrary(
        tuple(
            KeptPattern(
                key,
                tuple(
                    summarise(index, [0], [ToolNode("tool", seconds)])
                    for index, seconds in enumerate(stages_s)
                ),
                recorded_at_s=float(key),
            )
            for key, stages_s in enumerate(runs_s, start=1)
        )
    )


@given(
    st.lists(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=4), max_size=9),
    st.floats(0.001, 1e7),
)
def test_a_deadline_is_infeasible_exactly_if_there_are_enough_runs_and_all_took_longer(
    runs_s: list[list[float]], deadline_s: float
) -> None:
    past = library(*runs_s)
    has_enough = len(runs_s) >= MIN_RUNS
    is_infeasible = has_enough and all(sum(stages_s) > deadline_s for stages_s in runs_s)
    try:
        check_feasible("f", deadline_s, past, "fail")
    except DeadlineInfeasible:
        assert is_infeasible
    else:
        assert not is_infeasible
    check_feasible("f", None, past, "fail")


def test_a_pattern_counts_as_many_runs_as_its_weight() -> None:
    [pattern] = library([2.0, 3.0]).patterns
    heavy = PatternLibrary((KeptPattern(1, pattern.stages, 1.0, weight=12.0),))
    assert learned_bound(heavy) == (5.0, 12)
    assert learned_bound(PatternLibrary((pattern,))) is None


def test_runs_that_were_cut_off_are_no_lower_bound() -> None:
    """They were shorter than they would have been."""
    whole = library(*([10.0] for _ in range(5)))
    [pattern] = library([1.0]).patterns
    cut_off = replace(pattern, key=100, weight=50.0, is_cut_off=True)
    assert learned_bound(whole.added([cut_off])) == (10.0, 5)
    assert learned_bound(PatternLibrary((cut_off,))) is None


@pytest.fixture
async def past_runs(tmp_path: Path) -> None:
    """Record five runs of 10 s each."""
    async with scripted_runtime(tmp_path, clock=(clock := VirtualClock())) as runtime:
        for _ in range(int(MIN_RUNS)):
            await runtime.run(working(clock), 10.0)


def working(clock: VirtualClock, **limits: object):  # type: ignore[no-untyped-def]
    @tool
    async def work(seconds: float) -> None:
        clock.advance(seconds)

    @flow(name="work", **limits)  # type: ignore[call-overload, untyped-decorator]
    async def body(seconds: float) -> None:
        await work(seconds)

    return body


@pytest.mark.usefixtures("past_runs")
async def test_with_infeasible_fail_the_run_does_not_start(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, clock=(clock := VirtualClock())) as runtime:
        with pytest.raises(DeadlineInfeasible, match=r"shortest of 5 past runs of work took 10 s"):
            await runtime.run(working(clock, deadline=9.0, infeasible="fail"), 1.0)
        assert clock.now_s() == 0.0
        assert await num_runs(runtime) == 5
        await runtime.run(working(clock, deadline=11.0, infeasible="fail"), 1.0)
        assert await num_runs(runtime) == 6


@pytest.mark.usefixtures("past_runs")
async def test_with_infeasible_warn_the_run_executes_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_runtime(tmp_path, clock=(clock := VirtualClock())) as runtime:
        with caplog.at_level(logging.WARNING):
            await runtime.run(working(clock, deadline=9.0), 1.0)
    assert "a deadline of 9 s cannot be met" in caplog.text


def test_an_unknown_value_of_infeasible_is_refused_when_the_flow_is_made() -> None:
    with pytest.raises(ValueError, match="must be 'warn' or 'fail'"):
        working(VirtualClock(), infeasible="ignore")


async def num_runs(runtime: Runtime) -> int:
    """The number of recorded runs."""
    async with runtime.store.reading() as tx:
        return len(await tx.runs.newest())
