"""Sub-deadlines learned from past runs, and the SLOs of calls that follow from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.learning.stage_deadlines import (
    FALLBACK,
    LEARNED,
    RunTimes,
    StageDeadline,
    StageDeadlines,
    call_slo,
)
from patterns.features import Call
from patterns.library import KeptPattern, PatternLibrary
from patterns.nodes import LlmNode, Node, ToolNode
from patterns.stages import Stage, summarise
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.slo import BEST_EFFORT, Slo, SloKind, from_tags, to_tags
from tests.unit.orchestrator.orchestrator_samples import law

SKETCH = LengthSketch(tuple(float(10 * place) for place in range(1, len(LENGTH_LEVELS) + 1)))
NAMES = ("plan", "read", "write")


def a_run(*seconds: float, names: tuple[str, ...] = NAMES) -> tuple[Stage, ...]:
    """The stages of a run with one LLM call in each."""
    return tuple(
        summarise(index, (0,), (LlmNode(f"demo:{names[index % len(names)]}", 100, 50, took_s),))
        for index, took_s in enumerate(seconds)
    )


def library_of(*runs: tuple[Stage, ...]) -> PatternLibrary:
    return PatternLibrary(tuple(KeptPattern(key, run, 0.0) for key, run in enumerate(runs)))


def deadlines_for(
    library: PatternLibrary, *, deadline_at_s: float = 100.0, expected_stages: int | None = None
) -> StageDeadlines:
    return StageDeadlines(
        deadline_at_s=deadline_at_s,
        expected_stages=expected_stages,
        match=library.matcher.begin(),
    )


def llm_call(name: str) -> Call:
    return ("llm", f"demo:{name}")


def slo_of(
    stage: StageDeadline,
    *,
    limit_at_s: float = 100.0,
    run_deadline_at_s: float = 100.0,
    stage_calls: int = 1,
    num_programs: int = 1,
    length: LengthSketch | None = None,
) -> Slo:
    """The SLO of a call of the first stage, which begins at 0 together with its run."""
    return call_slo(
        run_id="r",
        run=RunTimes(0.0, run_deadline_at_s),
        stage=0,
        stage_calls=stage_calls,
        stage_deadline=stage,
        limit_at_s=limit_at_s,
        now_s=0.0,
        num_programs=num_programs,
        length=length,
    )


def test_a_stage_gets_the_share_of_time_that_past_runs_spent_on_it() -> None:
    run = a_run(1.0, 6.0, 3.0)
    deadlines = deadlines_for(library_of(run, run))
    stages: list[StageDeadline] = []
    for stage, name in enumerate(NAMES):
        now_s = stages[-1].at_s if stages else 0.0
        call = llm_call(name)
        stages.append(deadlines.of(stage, now_s, first_call=call, summary_of=lambda at: run[at]))
    assert [deadline.at_s for deadline in stages] == pytest.approx([10.0, 70.0, 100.0])
    assert {deadline.source for deadline in stages} == {LEARNED}
    assert stages[-1].at_s == 100.0


def test_time_that_a_stage_saved_goes_to_later_stages() -> None:
    run = a_run(5.0, 1.0, 4.0)
    on_time, early = deadlines_for(library_of(run)), deadlines_for(library_of(run))
    for deadlines in (on_time, early):
        deadlines.of(0, 0.0, first_call=llm_call("plan"))
    read = llm_call("read")
    assert on_time.of(1, 50.0, first_call=read, summary_of=lambda _: run[0]).at_s == 60.0
    # Its share of the remaining 99 s ends before 50 s, but sub-deadlines never decrease.
    assert early.of(1, 1.0, first_call=read, summary_of=lambda _: run[0]).at_s == 50.0
    last = early.of(2, 2.0, first_call=llm_call("write"), summary_of=lambda at: run[at])
    assert last.at_s == 100.0


def test_the_first_call_of_a_stage_selects_the_past_runs_that_match() -> None:
    """Two past runs differ after their first stage; each live run follows its own."""
    short = a_run(1.0, 1.0, names=("plan", "write"))
    long = a_run(1.0, 1.0, 8.0, names=("plan", "read", "write"))
    for name, due_s in (("write", 100.0), ("read", 50.0 + 50.0 / 9)):
        deadlines = deadlines_for(library_of(short, long))
        deadlines.of(0, 0.0, first_call=llm_call("plan"))
        stage = deadlines.of(1, 50.0, first_call=llm_call(name), summary_of=lambda at: short[at])
        assert stage.at_s == pytest.approx(due_s)
        assert stage.estimate is not None
        assert stage.estimate.num_candidates == 1


def test_from_the_first_stage_that_no_past_run_matches_time_is_divided_evenly() -> None:
    run = a_run(1.0, 1.0, 1.0)
    deadlines = deadlines_for(library_of(run), expected_stages=4)
    assert deadlines.of(0, 0.0, first_call=llm_call("plan")).source == LEARNED
    other = deadlines.of(1, 40.0, first_call=("tool", "search"), summary_of=lambda at: run[at])
    assert (other.source, other.at_s, other.estimate) == (FALLBACK, 60.0, None)
    searched = summarise(1, (0,), (ToolNode("search", 1.0),))
    seen = {0: run[0], 1: searched}
    third = deadlines.of(2, 50.0, first_call=llm_call("write"), summary_of=seen.__getitem__)
    assert (third.source, third.at_s) == (FALLBACK, 75.0)


def test_a_run_with_more_stages_than_every_past_run_falls_back_for_the_later_ones() -> None:
    run = a_run(1.0, 1.0)
    deadlines = deadlines_for(library_of(run))
    longer = a_run(1.0, 1.0, 1.0, 1.0)
    sources = [
        deadlines.of(
            stage, 10.0 * stage, first_call=llm_call(name), summary_of=lambda at: longer[at]
        ).source
        for stage, name in enumerate((*NAMES, "plan"))
    ]
    assert sources == [LEARNED, LEARNED, FALLBACK, FALLBACK]


def test_a_stage_without_a_completed_call_ends_the_matching() -> None:
    deadlines = deadlines_for(library_of(a_run(1.0, 1.0, 1.0)))
    deadlines.of(0, 0.0, first_call=llm_call("plan"))
    stage = deadlines.of(1, 1.0, first_call=llm_call("read"), summary_of=lambda _: None)
    assert stage.source == FALLBACK


def test_a_run_without_deadline_has_estimates_too() -> None:
    deadlines = deadlines_for(library_of(a_run(1.0, 3.0)), deadline_at_s=math.inf)
    stage = deadlines.of(0, 0.0, first_call=llm_call("plan"))
    assert stage.at_s == math.inf
    assert stage.estimate is not None
    assert stage.estimate.outlook.share == 0.25


names = st.sampled_from(["plan", "read", "write"])
nodes: st.SearchStrategy[Node] = st.one_of(
    st.builds(
        LlmNode,
        names.map("demo:{}".format),
        st.integers(0, 9000),
        st.integers(0, 9000),
        st.floats(0, 1e6),
    ),
    st.builds(ToolNode, names, st.floats(0, 1e6)),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Stage, ...]:
    layers = draw(st.lists(st.lists(nodes, min_size=1, max_size=3), min_size=1, max_size=6))
    return tuple(summarise(index, range(len(layer)), layer) for index, layer in enumerate(layers))


@law
@given(
    past=st.lists(runs(), min_size=1, max_size=8),
    live=runs(),
    deadline_s=st.floats(1e-6, 1e9),
    waits=st.lists(st.floats(0, 2), min_size=6, max_size=6),
)
def test_learned_sub_deadlines_never_decrease_and_never_exceed_the_runs_deadline(
    past: list[tuple[Stage, ...]], live: tuple[Stage, ...], deadline_s: float, waits: list[float]
) -> None:
    """Law 3; and a stage that was the last of all matching past runs gets all remaining time."""
    deadlines = deadlines_for(library_of(*past), deadline_at_s=deadline_s)
    now_s, before_s = 0.0, 0.0
    for stage in live:
        call = stage.calls[0]
        deadline = deadlines.of(
            stage.index, now_s, first_call=(call.kind, call.identity), summary_of=live.__getitem__
        )
        assert before_s <= deadline.at_s <= deadline_s
        assert deadline.at_s >= min(now_s, deadline_s)
        if deadline.estimate is not None:
            assert 0 < deadline.estimate.outlook.share <= 1
            if deadline.estimate.outlook.later_s == 0:
                assert deadline.at_s == pytest.approx(deadline_s)
        before_s = deadline.at_s
        now_s += waits[stage.index] * deadline_s / len(live)


def test_an_slo_has_the_predicted_length_and_the_future_work_of_the_run() -> None:
    deadlines = deadlines_for(library_of(a_run(1.0, 6.0, 3.0)))
    stage = deadlines.of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, length=SKETCH)
    assert (slo.kind, slo.deadline_s, slo.length) == (SloKind.COMPOUND, 10.0, SKETCH)
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((2, 200, 100, 9.0, 0.0, 100))
    assert from_tags(to_tags(slo)) == slo


def test_under_a_shorter_limit_the_future_work_is_the_share_before_the_limit() -> None:
    """45 of the 90 s after its stage are before the limit, so half of the later work counts."""
    stage = deadlines_for(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, limit_at_s=55.0)
    assert (slo.deadline_s, slo.final_s, slo.program) == (10.0, 55.0, "r+55.000s")
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((1, 100, 50, 4.5, 0.0, 50))
    assert from_tags(to_tags(slo)) == slo


@pytest.mark.parametrize("limit_at_s", [4.0, 10.0])
def test_a_limit_before_the_end_of_its_stage_leaves_no_future_work(limit_at_s: float) -> None:
    stage = deadlines_for(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, limit_at_s=limit_at_s)
    assert (slo.deadline_s, slo.final_s, slo.future) == (limit_at_s, limit_at_s, None)


def test_a_limit_in_a_run_without_deadline_leaves_no_future_work() -> None:
    library = library_of(a_run(1.0, 6.0, 3.0))
    stage = deadlines_for(library, deadline_at_s=math.inf).of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, limit_at_s=20.0, run_deadline_at_s=math.inf)
    assert (slo.deadline_s, slo.final_s, slo.program) == (20.0, 20.0, "r+20.000s")
    assert slo.future is None


def test_a_limit_that_differs_from_the_runs_deadline_by_rounding_makes_no_program() -> None:
    stage = deadlines_for(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, limit_at_s=100.0 - 1e-9)
    assert (slo.program, slo.future) == ("r", slo_of(stage).future)


def test_parallel_programs_divide_the_later_work_but_not_its_duration() -> None:
    """Otherwise each of four branches would have all later work of the run before it."""
    stage = deadlines_for(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=llm_call("plan"))
    slo = slo_of(stage, limit_at_s=55.0, num_programs=4)
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((0.25, 25, 12.5, 4.5, 0.0, 50))


def a_stage(*, llm_calls: int, tools: int, index: int = 0) -> Stage:
    llm_node, tool_node = LlmNode("demo:plan", 1, 1, 1.0), ToolNode("look", 1.0)
    nodes = (*[llm_node] * llm_calls, *[tool_node] * tools)
    return summarise(index, range(len(nodes)), nodes)


@pytest.mark.parametrize(("stage_calls", "expected"), [(1, 3), (2, 2), (5, 5)])
def test_an_unknown_number_of_calls_of_a_stage_is_taken_from_past_runs(
    stage_calls: int, expected: int
) -> None:
    stages = deadlines_for(library_of((a_stage(llm_calls=3, tools=0),)))
    stage = stages.of(0, 0.0, first_call=llm_call("plan"))
    assert slo_of(stage, stage_calls=stage_calls).stage_calls == expected


@pytest.mark.parametrize(
    ("llm_calls", "tools", "stage_calls", "expected"),
    [(1, 8, 1, 1), (1, 8, 9, 1), (3, 3, 1, 3), (3, 3, 6, 3), (3, 3, 10, 5), (1, 9, 2, 1)],
)
def test_tool_calls_of_a_stage_do_not_count_as_stage_calls(
    llm_calls: int, tools: int, stage_calls: int, expected: int
) -> None:
    stages = deadlines_for(library_of((a_stage(llm_calls=llm_calls, tools=tools),)))
    stage = stages.of(0, 0.0, first_call=llm_call("plan"))
    assert slo_of(stage, stage_calls=stage_calls).stage_calls == expected


def test_parallel_programs_divide_the_calls_of_a_stage() -> None:
    stages = deadlines_for(library_of((a_stage(llm_calls=8, tools=0),)))
    stage = stages.of(0, 0.0, first_call=llm_call("plan"))
    assert slo_of(stage, limit_at_s=20.0, num_programs=8).stage_calls == 1
    assert slo_of(stage, limit_at_s=20.0, num_programs=2).stage_calls == 4


def test_later_tool_calls_do_not_count_as_future_calls() -> None:
    past = (
        a_stage(llm_calls=1, tools=0),
        *(a_stage(llm_calls=1, tools=4, index=i) for i in (1, 2)),
    )
    slo = slo_of(deadlines_for(library_of(past)).of(0, 0.0, first_call=llm_call("plan")))
    assert slo.future is not None
    assert (slo.future.calls, slo.future.serial_tokens) == (2, 2)


def test_serial_tokens_count_parallel_calls_of_a_later_stage_once() -> None:
    past = (a_stage(llm_calls=1, tools=0), a_stage(llm_calls=8, tools=2, index=1))
    slo = slo_of(deadlines_for(library_of(past)).of(0, 0.0, first_call=llm_call("plan")))
    assert slo.future is not None
    assert (slo.future.decode_tokens, slo.future.serial_tokens) == (8, 1)


def test_a_stage_followed_only_by_tools_leaves_time_for_them() -> None:
    past = (a_stage(llm_calls=1, tools=0), a_stage(llm_calls=0, tools=1, index=1))
    stage = deadlines_for(library_of(past)).of(0, 0.0, first_call=llm_call("plan"))
    assert stage.at_s == 50.0
    future = slo_of(stage).future
    assert future is not None
    assert (future.calls, future.tool_s, future.serial_tokens) == (0, 1.0, 0)


def test_without_a_deadline_an_slo_has_only_the_predicted_length() -> None:
    stage = StageDeadline(math.inf, FALLBACK)
    for length, expected in ((None, BEST_EFFORT), (SKETCH, None)):
        slo = slo_of(stage, limit_at_s=math.inf, run_deadline_at_s=math.inf, length=length)
        assert (slo.kind, slo.length) == (SloKind.BEST_EFFORT, length)
        assert expected is None or slo == expected
