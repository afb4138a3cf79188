"""What past runs say of a live one, and which of them may say anything."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    Estimate,
    LlmNode,
    Matcher,
    PatternGraph,
    Stage,
    StageKernel,
    ToolNode,
    tabulate,
)
from patterns.features import calls_of
from tests.unit.patterns.pattern_strategies import (
    chain,
    few_graphs,
    law,
    many_runs,
    runs,
    shuffled,
    staged_graph,
)

Run = tuple[Stage, ...]

kernels = st.tuples(*[st.sampled_from([0.1, 1.0, 10.0, math.inf])] * 3).map(StageKernel)


def matcher_of(
    past: Sequence[Run], kernel: StageKernel | None = None, weights: Sequence[float] | None = None
) -> Matcher:
    ones = np.ones(len(past)) if weights is None else np.array(weights, dtype=float)
    return Matcher(tabulate(past), kernel or StageKernel(), ones)


@st.composite
def live_runs(draw: st.DrawFn, past: Sequence[Run]) -> Run:
    """A run of the past, perhaps with other calls at its end, or one that nobody has seen."""
    if draw(st.integers(0, 3)) == 0:
        return draw(runs)
    return draw(st.sampled_from(past))


def assert_same(one: Estimate | None, other: Estimate | None) -> None:
    """The same estimate, up to the order of addition."""
    if one is None or other is None:
        assert one is other
        return
    assert tuple(one.outlook) == pytest.approx(tuple(other.outlook))
    assert one.share_before == pytest.approx(other.share_before)
    assert one.spread == pytest.approx(other.spread, abs=1e-9)


def estimates(matcher: Matcher, live: Run, best: int = 16) -> list[Estimate | None]:
    """Of every stage, knowing its calls, and of the one after the last."""
    found = []
    match = matcher.begin()
    for stage in live:
        found.append(match.estimate(calls_of(stage), best=best))
        match = match.extend(stage)
    return [*found, match.estimate(best=best)]


@law
@given(many_runs, kernels, st.integers(1, 9), st.data())
def test_an_estimate_is_a_weighted_mean_of_runs_that_began_alike(
    past: list[Run], kernel: StageKernel, best: int, data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    for found in estimates(matcher_of(past, kernel), live, best):
        if found is None:
            continue
        assert 0.0 < found.outlook.share <= 1.0
        assert 0.0 <= found.share_before <= found.outlook.share
        assert found.spread >= 0.0
        assert all(value >= 0.0 for value in found.outlook)
        assert sum(match.weight for match in found.matches) == pytest.approx(1.0)
        alike = [match.similarity for match in found.matches]
        assert alike == sorted(alike, reverse=True)
        assert all(0.0 <= similarity <= 1.0 for similarity in alike)
        weights = [match.weight for match in found.matches]
        assert weights == sorted(weights, reverse=True)
        assert len({match.row for match in found.matches}) == len(found.matches)
        assert min(best, found.num_candidates) <= len(found.matches) <= found.num_candidates


@law
@given(many_runs, st.data())
def test_the_last_stage_of_every_match_ends_the_run(past: list[Run], data: st.DataObject) -> None:
    live = data.draw(live_runs(past))
    for num_revealed, found in enumerate(estimates(matcher_of(past), live)):
        if found and all(len(past[match.row]) == num_revealed + 1 for match in found.matches):
            assert found.outlook.share == 1.0
            assert found.outlook.later_llm_calls == found.outlook.later_s == 0.0


@law
@given(many_runs, st.data())
def test_who_made_other_calls_or_ended_before_says_nothing(
    past: list[Run], data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    matcher = matcher_of(past)
    for num_revealed, stage in enumerate(live):
        found = matcher.match(live[:num_revealed]).estimate(calls_of(stage), best=len(past))
        began_alike = {
            row
            for row, run in enumerate(past)
            if len(run) > num_revealed
            and all(
                calls_of(known) <= calls_of(its)
                for known, its in zip(live[: num_revealed + 1], run, strict=False)
            )
        }
        assert {match.row for match in found.matches} == began_alike if found else not began_alike


@law
@given(many_runs, st.data())
def test_extending_stage_by_stage_is_matching_the_whole_prefix(
    past: list[Run], data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    matcher = matcher_of(past)
    match = matcher.begin()
    for num_revealed, stage in enumerate(live):
        assert match.estimate() == matcher.match(live[:num_revealed]).estimate()
        match = match.extend(stage)


@law
@given(st.lists(few_graphs, min_size=1, max_size=5), few_graphs, st.data())
def test_the_order_in_which_calls_were_recorded_does_not_matter(
    past: list[PatternGraph], live: PatternGraph, data: st.DataObject
) -> None:
    live = data.draw(st.sampled_from([live, *past]))
    as_recorded = matcher_of([graph.stages for graph in past])
    reordered = matcher_of([shuffled(data.draw, graph).stages for graph in past])
    other = shuffled(data.draw, live).stages
    assert estimates(as_recorded, live.stages) == estimates(reordered, other)


@law
@given(many_runs, st.integers(1, 4), st.data())
def test_the_order_of_the_past_runs_does_not_matter(
    past: list[Run], best: int, data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    order = data.draw(st.permutations(range(len(past))))
    there = estimates(matcher_of(past), live, best)
    here = estimates(matcher_of([past[row] for row in order]), live, best)
    for one, other in zip(there, here, strict=True):
        assert_same(one, other)
        if one and other:
            assert {match.row for match in one.matches} == {order[m.row] for m in other.matches}


@law
@given(many_runs, kernels, st.data())
def test_a_pattern_of_a_weight_weighs_as_much_as_so_many_equal_ones(
    past: list[Run], kernel: StageKernel, data: st.DataObject
) -> None:
    """Where all of them are rested on: among the best, a pattern is one whatever its weight."""
    live = data.draw(live_runs(past))
    size = len(past)
    weights = data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    repeated = [run for run, weight in zip(past, weights, strict=True) for _ in range(weight)]
    best = len(repeated)
    weighted = estimates(matcher_of(past, kernel, weights), live, best)
    for one, other in zip(
        weighted, estimates(matcher_of(repeated, kernel), live, best), strict=True
    ):
        assert_same(one, other)


@law
@given(many_runs, st.data())
def test_the_best_one_is_the_nearest(past: list[Run], data: st.DataObject) -> None:
    live = data.draw(live_runs(past))
    matcher = matcher_of(past)
    for num_revealed, stage in enumerate(live):
        match = matcher.match(live[:num_revealed])
        one = match.estimate(calls_of(stage), best=1)
        every = match.estimate(calls_of(stage), best=len(past))
        if one is None or every is None:
            assert one is every
            continue
        least = min(match.squared[its.row] for its in every.matches)
        at_least = {its.row for its in every.matches if match.squared[its.row] == least}
        assert {its.row for its in one.matches} == at_least


@law
@given(many_runs, kernels, st.data())
def test_a_run_like_the_live_one_has_similarity_1(
    past: list[Run], kernel: StageKernel, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(past) - 1))
    for found in estimates(matcher_of(past, kernel), past[row])[:-1]:
        assert found is not None
        assert found.matches[0].similarity == 1.0
        assert row in {match.row for match in found.matches if match.similarity == 1.0}


@law
@given(many_runs, st.data())
def test_a_call_that_nobody_made_is_foretold_by_nobody(
    past: list[Run], data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    stranger = chain(("m/never-seen", 1, 1.0))[0]
    match = matcher_of(past).match(live)
    assert match.estimate([("llm", "m/never-seen")]) is None
    assert match.extend(stranger).estimate() is None
    assert match.estimate([("tool", "m/plan")]) is None


def test_a_model_and_a_tool_of_one_name_are_different_calls() -> None:
    matcher = matcher_of([staged_graph([[ToolNode("search", 1.0)]]).stages])
    assert matcher.begin().estimate([("llm", "search")]) is None
    assert matcher.begin().estimate([("tool", "search")]) is not None


def test_without_past_runs_nothing_is_foretold() -> None:
    nobody = matcher_of([])
    assert nobody.begin().estimate() is None
    assert nobody.match(chain(("plan", 1, 1.0), ("act", 1, 1.0))).estimate() is None


def test_a_live_run_longer_than_all_past_ones_matches_none() -> None:
    matcher = matcher_of([chain(("plan", 1, 1.0), ("act", 1, 1.0))])
    live = chain(*(("plan", 1, 1.0), ("act", 1, 1.0)) * 3)
    assert [found is None for found in estimates(matcher, live)] == [False] * 2 + [True] * 5


def test_an_empty_past_run_says_nothing() -> None:
    matcher = matcher_of([(), chain(("plan", 1, 1.0))])
    found = matcher.begin().estimate()
    assert found is not None
    assert [match.row for match in found.matches] == [1]


def test_the_more_similar_run_counts_more() -> None:
    """Long first answers were followed by long second stages; the live one's was long."""
    short = chain(("plan", 10, 1.0), ("act", 10, 1.0))
    long = chain(("plan", 1000, 1.0), ("act", 10, 9.0))
    live = chain(("plan", 900, 1.0))
    found = matcher_of([short, long]).match(live).estimate()
    assert found is not None
    assert [match.row for match in found.matches] == [1, 0]
    assert found.outlook.stage_s > 8.0
    assert found.share_before == pytest.approx(
        1.0 / (found.outlook.elapsed_s + found.outlook.rest_s)
    )


def test_far_from_all_past_runs_the_nearest_still_count_most() -> None:
    """Their similarities alone would all be 0."""
    near = chain(("plan", 10_000, 1.0), ("act", 1, 3.0))
    far = chain(("plan", 1, 1.0), ("act", 1, 1.0))
    matcher = matcher_of([far, near], StageKernel((0.01, 1.0, 1.0)))
    found = matcher.match(chain(("plan", 10**9, 1.0))).estimate()
    assert found is not None
    assert found.matches[0].similarity == 0.0
    assert (found.matches[0].row, found.matches[0].weight) == (1, 1.0)
    assert found.outlook.stage_s == 3.0


def test_runs_exactly_as_near_as_the_last_match_are_not_left_out() -> None:
    equal = [chain(("plan", 5, 1.0), ("act", 1, seconds)) for seconds in (1.0, 2.0, 3.0)]
    found = matcher_of(equal).match(equal[0][:1]).estimate(best=1)
    assert found is not None
    assert [match.row for match in found.matches] == [2, 1, 0]
    assert found.outlook.stage_s == pytest.approx(2.0)


def test_a_stage_that_has_begun_may_still_make_further_calls() -> None:
    """Only what is known to be called prunes; a pattern that also calls a tool remains."""
    plan = [LlmNode("plan", 1, 1, 1.0)]
    both = staged_graph([plan, [LlmNode("act", 1, 1, 1.0), ToolNode("search", 1.0)]]).stages
    only = staged_graph([plan, [LlmNode("act", 1, 1, 1.0)]]).stages
    match = matcher_of([both, only]).match(both[:1])
    one = match.estimate([("llm", "act")])
    other = match.estimate([("llm", "act"), ("tool", "search")])
    assert one is not None
    assert other is not None
    assert {its.row for its in one.matches} == {0, 1}
    assert {its.row for its in other.matches} == {0}


def test_a_match_shows_whose_spread_it_rests_on() -> None:
    sure = matcher_of([chain(("plan", 5, 1.0), ("act", 1, 1.0))] * 3)
    unsure = matcher_of([chain(("plan", 5, 1.0), ("act", 1, s)) for s in (1.0, 3.0)])
    found, other = sure.begin().estimate(), unsure.begin().estimate()
    assert found is not None
    assert other is not None
    assert found.spread == pytest.approx(0.0)
    assert other.spread == pytest.approx(0.125)  # shares of 1/2 and 1/4


def test_similarity_is_of_the_mean_stage_however_many_there_are() -> None:
    """Else a long prefix would resemble nobody, only because it is long."""
    past, live = chain(*(("plan", 10, 1.0),) * 5), chain(*(("plan", 100, 1.0),) * 4)
    apart = math.log(101.0 / 11.0)
    for num_revealed in range(1, 5):
        found = matcher_of([past]).match(live[:num_revealed]).estimate()
        assert found is not None
        assert found.matches[0].similarity == pytest.approx(math.exp(-(apart**2) / 2))


def test_a_matcher_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        matcher_of([]).kernel = StageKernel()  # type: ignore[misc]
