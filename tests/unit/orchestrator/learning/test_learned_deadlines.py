"""A run's deadline divided as past runs spent theirs, and what that promises each call."""

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


def divided(
    library: PatternLibrary, *, deadline_at_s: float = 100.0, expected: int | None = None
) -> StageDeadlines:
    return StageDeadlines(
        deadline_at_s=deadline_at_s, expected_stages=expected, match=library.matcher.begin()
    )


def begun(name: str) -> Call:
    return ("llm", f"demo:{name}")


def promised(
    stage: StageDeadline,
    *,
    limit_at_s: float = 100.0,
    run_deadline_at_s: float = 100.0,
    known: int = 1,
    num_programs: int = 1,
    length: LengthSketch | None = None,
) -> Slo:
    """To a call of the first stage of a run that began at 0, as it begins."""
    return call_slo(
        run_id="r",
        run=RunTimes(0.0, run_deadline_at_s),
        stage=0,
        stage_calls=known,
        stage_deadline=stage,
        limit_at_s=limit_at_s,
        now_s=0.0,
        num_programs=num_programs,
        length=length,
    )


def test_a_stage_gets_the_share_that_past_runs_spent_on_it() -> None:
    run = a_run(1.0, 6.0, 3.0)
    deadlines = divided(library_of(run, run))
    found = []
    for stage, name in enumerate(NAMES):
        now_s = found[-1].at_s if found else 0.0
        found.append(deadlines.of(stage, now_s, first_call=begun(name), reveal=lambda at: run[at]))
    assert [deadline.at_s for deadline in found] == pytest.approx([10.0, 70.0, 100.0])
    assert {deadline.source for deadline in found} == {LEARNED}
    assert found[-1].at_s == 100.0


def test_time_that_a_stage_saved_goes_to_those_that_follow() -> None:
    run = a_run(5.0, 1.0, 4.0)
    on_time, early = divided(library_of(run)), divided(library_of(run))
    for deadlines in (on_time, early):
        deadlines.of(0, 0.0, first_call=begun("plan"))
    assert on_time.of(1, 50.0, first_call=begun("read"), reveal=lambda _: run[0]).at_s == 60.0
    # 99 s are left for what took 5 before; but never before the stage that was due at 50.
    assert early.of(1, 1.0, first_call=begun("read"), reveal=lambda _: run[0]).at_s == 50.0
    last = early.of(2, 2.0, first_call=begun("write"), reveal=lambda at: run[at])
    assert last.at_s == 100.0


def test_the_call_that_begins_tells_which_past_runs_go_on_like_this_one() -> None:
    """Two past runs part after their first stage; each live one is divided like its own."""
    short = a_run(1.0, 1.0, names=("plan", "write"))
    long = a_run(1.0, 1.0, 8.0, names=("plan", "read", "write"))
    for name, due_s in (("write", 100.0), ("read", 50.0 + 50.0 / 9)):
        deadlines = divided(library_of(short, long))
        deadlines.of(0, 0.0, first_call=begun("plan"))
        found = deadlines.of(1, 50.0, first_call=begun(name), reveal=lambda at: short[at])
        assert found.at_s == pytest.approx(due_s)
        assert found.estimate is not None
        assert found.estimate.num_candidates == 1


def test_from_where_no_past_run_is_like_it_a_run_is_divided_evenly() -> None:
    run = a_run(1.0, 1.0, 1.0)
    deadlines = divided(library_of(run), expected=4)
    assert deadlines.of(0, 0.0, first_call=begun("plan")).source == LEARNED
    other = deadlines.of(1, 40.0, first_call=("tool", "search"), reveal=lambda at: run[at])
    assert (other.source, other.at_s, other.estimate) == (FALLBACK, 60.0, None)
    searched = summarise(1, (0,), (ToolNode("search", 1.0),))
    seen = {0: run[0], 1: searched}
    third = deadlines.of(2, 50.0, first_call=begun("write"), reveal=seen.__getitem__)
    assert (third.source, third.at_s) == (FALLBACK, 75.0)


def test_a_run_longer_than_every_past_one_falls_back_at_its_end() -> None:
    run = a_run(1.0, 1.0)
    deadlines = divided(library_of(run))
    longer = a_run(1.0, 1.0, 1.0, 1.0)
    sources = [
        deadlines.of(
            stage, 10.0 * stage, first_call=begun(name), reveal=lambda at: longer[at]
        ).source
        for stage, name in enumerate((*NAMES, "plan"))
    ]
    assert sources == [LEARNED, LEARNED, FALLBACK, FALLBACK]


def test_a_stage_of_which_no_call_ended_ends_the_matching() -> None:
    deadlines = divided(library_of(a_run(1.0, 1.0, 1.0)))
    deadlines.of(0, 0.0, first_call=begun("plan"))
    assert deadlines.of(1, 1.0, first_call=begun("read"), reveal=lambda _: None).source == FALLBACK


def test_a_run_without_deadline_is_estimated_all_the_same() -> None:
    deadlines = divided(library_of(a_run(1.0, 3.0)), deadline_at_s=math.inf)
    found = deadlines.of(0, 0.0, first_call=begun("plan"))
    assert found.at_s == math.inf
    assert found.estimate is not None
    assert found.estimate.outlook.share == 0.25


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
def test_learned_sub_deadlines_rise_and_never_pass_the_runs(
    past: list[tuple[Stage, ...]], live: tuple[Stage, ...], deadline_s: float, waits: list[float]
) -> None:
    """Law 3; and the last stage of every past run like it gets all that is left."""
    deadlines = divided(library_of(*past), deadline_at_s=deadline_s)
    now_s, before_s = 0.0, 0.0
    for stage in live:
        call = stage.calls[0]
        found = deadlines.of(
            stage.index, now_s, first_call=(call.kind, call.identity), reveal=live.__getitem__
        )
        assert before_s <= found.at_s <= deadline_s
        assert found.at_s >= min(now_s, deadline_s)
        if found.estimate is not None:
            assert 0 < found.estimate.outlook.share <= 1
            if found.estimate.outlook.later_s == 0:
                assert found.at_s == pytest.approx(deadline_s)
        before_s = found.at_s
        now_s += waits[stage.index] * deadline_s / len(live)


def test_a_call_carries_its_length_and_the_rest_of_the_run() -> None:
    deadlines = divided(library_of(a_run(1.0, 6.0, 3.0)))
    stage = deadlines.of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, length=SKETCH)
    assert (slo.kind, slo.deadline_s, slo.length) == (SloKind.COMPOUND, 10.0, SKETCH)
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((2, 200, 100, 9.0, 0.0, 100))
    assert from_tags(to_tags(slo)) == slo


def test_under_a_shorter_limit_a_call_carries_what_of_the_rest_lies_before_it() -> None:
    """Of the 90 s after its stage, 45 lie before the limit, in which half of the rest is due."""
    stage = divided(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, limit_at_s=55.0)
    assert (slo.deadline_s, slo.final_s, slo.program) == (10.0, 55.0, "r+55.000s")
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((1, 100, 50, 4.5, 0.0, 50))
    assert from_tags(to_tags(slo)) == slo


@pytest.mark.parametrize("limit_at_s", [4.0, 10.0])
def test_a_limit_that_comes_before_the_stages_own_end_leaves_no_rest(limit_at_s: float) -> None:
    stage = divided(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, limit_at_s=limit_at_s)
    assert (slo.deadline_s, slo.final_s, slo.future) == (limit_at_s, limit_at_s, None)


def test_a_limit_in_a_run_without_deadline_leaves_no_rest() -> None:
    library = library_of(a_run(1.0, 6.0, 3.0))
    stage = divided(library, deadline_at_s=math.inf).of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, limit_at_s=20.0, run_deadline_at_s=math.inf)
    assert (slo.deadline_s, slo.final_s, slo.program) == (20.0, 20.0, "r+20.000s")
    assert slo.future is None


def test_a_limit_that_only_rounding_tells_from_the_runs_deadline_is_none() -> None:
    stage = divided(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, limit_at_s=100.0 - 1e-9)
    assert (slo.program, slo.future) == ("r", promised(stage).future)


def test_programs_side_by_side_share_the_work_of_what_follows_and_not_its_time() -> None:
    """Else each of four branches would have the whole run's rest before it."""
    stage = divided(library_of(a_run(1.0, 6.0, 3.0))).of(0, 0.0, first_call=begun("plan"))
    slo = promised(stage, limit_at_s=55.0, num_programs=4)
    assert slo.future is not None
    assert tuple(slo.future) == pytest.approx((0.25, 25, 12.5, 4.5, 0.0, 50))


def a_stage(*, llm_calls: int, tools: int, index: int = 0) -> Stage:
    asked, looked = LlmNode("demo:plan", 1, 1, 1.0), ToolNode("look", 1.0)
    nodes = (*[asked] * llm_calls, *[looked] * tools)
    return summarise(index, range(len(nodes)), nodes)


@pytest.mark.parametrize(("known", "said"), [(1, 3), (2, 2), (5, 5)])
def test_where_nothing_is_known_a_stage_is_expected_to_have_the_calls_that_past_ones_had(
    known: int, said: int
) -> None:
    stages = divided(library_of((a_stage(llm_calls=3, tools=0),)))
    slo = promised(stages.of(0, 0.0, first_call=begun("plan")), known=known)
    assert slo.stage_calls == said


@pytest.mark.parametrize(
    ("llm_calls", "tools", "known", "said"),
    [(1, 8, 1, 1), (1, 8, 9, 1), (3, 3, 1, 3), (3, 3, 6, 3), (3, 3, 10, 5), (1, 9, 2, 1)],
)
def test_tools_of_a_stage_are_no_calls_that_the_engine_waits_for(
    llm_calls: int, tools: int, known: int, said: int
) -> None:
    stages = divided(library_of((a_stage(llm_calls=llm_calls, tools=tools),)))
    slo = promised(stages.of(0, 0.0, first_call=begun("plan")), known=known)
    assert slo.stage_calls == said


def test_programs_side_by_side_divide_the_calls_of_a_stage() -> None:
    stages = divided(library_of((a_stage(llm_calls=8, tools=0),)))
    stage = stages.of(0, 0.0, first_call=begun("plan"))
    assert promised(stage, limit_at_s=20.0, num_programs=8).stage_calls == 1
    assert promised(stage, limit_at_s=20.0, num_programs=2).stage_calls == 4


def test_tools_to_come_are_no_calls_of_the_engines() -> None:
    past = (
        a_stage(llm_calls=1, tools=0),
        *(a_stage(llm_calls=1, tools=4, index=i) for i in (1, 2)),
    )
    slo = promised(divided(library_of(past)).of(0, 0.0, first_call=begun("plan")))
    assert slo.future is not None
    assert (slo.future.calls, slo.future.serial_tokens) == (2, 2)


def test_calls_of_a_later_stage_answer_side_by_side() -> None:
    past = (a_stage(llm_calls=1, tools=0), a_stage(llm_calls=8, tools=2, index=1))
    slo = promised(divided(library_of(past)).of(0, 0.0, first_call=begun("plan")))
    assert slo.future is not None
    assert (slo.future.decode_tokens, slo.future.serial_tokens) == (8, 1)


def test_a_stage_that_only_tools_follow_leaves_them_their_time() -> None:
    past = (a_stage(llm_calls=1, tools=0), a_stage(llm_calls=0, tools=1, index=1))
    found = divided(library_of(past)).of(0, 0.0, first_call=begun("plan"))
    assert found.at_s == 50.0
    future = promised(found).future
    assert future is not None
    assert (future.calls, future.tool_s, future.serial_tokens) == (0, 1.0, 0)


def test_without_deadline_the_length_is_all_that_is_promised() -> None:
    nothing = StageDeadline(math.inf, FALLBACK)
    for length, slo in ((None, BEST_EFFORT), (SKETCH, None)):
        found = promised(nothing, limit_at_s=math.inf, run_deadline_at_s=math.inf, length=length)
        assert (found.kind, found.length) == (SloKind.BEST_EFFORT, length)
        assert slo is None or found == slo
