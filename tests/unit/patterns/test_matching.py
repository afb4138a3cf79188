"""Matching: which past runs match a live one, and the estimates from them."""

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
    """A past run, or with probability 1/4 another one."""
    if draw(st.integers(0, 3)) == 0:
        return draw(runs)
    return draw(st.sampled_from(past))


def assert_same(one: Estimate | None, other: Estimate | None) -> None:
    """Check that two estimates are equal, up to rounding errors of the order of addition."""
    if one is None or other is None:
        assert one is other
        return
    assert tuple(one.outlook) == pytest.approx(tuple(other.outlook))
    assert one.share_before == pytest.approx(other.share_before)
    assert one.spread == pytest.approx(other.spread, abs=1e-9)


def estimates(matcher: Matcher, live: Run, best: int = 16) -> list[Estimate | None]:
    """The estimate of every stage, given its calls, and of a stage after the last one."""
    results = []
    match = matcher.begin()
    for stage in live:
        results.append(match.estimate(calls_of(stage), best=best))
        match = match.extend(stage)
    return [*results, match.estimate(best=best)]


@law
@given(many_runs, kernels, st.integers(1, 9), st.data())
def test_an_estimate_is_a_weighted_mean_of_matching_runs(
    past: list[Run], kernel: StageKernel, best: int, data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    for estimate in estimates(matcher_of(past, kernel), live, best):
        if estimate is None:
            continue
        assert 0.0 < estimate.outlook.share <= 1.0
        assert 0.0 <= estimate.share_before <= estimate.outlook.share
        assert estimate.spread >= 0.0
        assert all(value >= 0.0 for value in estimate.outlook)
        assert sum(match.weight for match in estimate.matches) == pytest.approx(1.0)
        similarities = [match.similarity for match in estimate.matches]
        assert similarities == sorted(similarities, reverse=True)
        assert all(0.0 <= similarity <= 1.0 for similarity in similarities)
        weights = [match.weight for match in estimate.matches]
        assert weights == sorted(weights, reverse=True)
        assert len({match.row for match in estimate.matches}) == len(estimate.matches)
        num_matches = len(estimate.matches)
        assert min(best, estimate.num_candidates) <= num_matches <= estimate.num_candidates


@law
@given(many_runs, st.data())
def test_a_stage_that_is_the_last_of_every_match_has_share_1(
    past: list[Run], data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    for num_revealed, estimate in enumerate(estimates(matcher_of(past), live)):
        if estimate and all(len(past[match.row]) == num_revealed + 1 for match in estimate.matches):
            assert estimate.outlook.share == 1.0
            assert estimate.outlook.later_llm_calls == estimate.outlook.later_s == 0.0


@law
@given(many_runs, st.data())
def test_only_longer_runs_with_the_same_calls_match(past: list[Run], data: st.DataObject) -> None:
    live = data.draw(live_runs(past))
    matcher = matcher_of(past)
    for num_revealed, stage in enumerate(live):
        estimate = matcher.match(live[:num_revealed]).estimate(calls_of(stage), best=len(past))
        expected = {
            row
            for row, run in enumerate(past)
            if len(run) > num_revealed
            and all(
                calls_of(known) <= calls_of(recorded)
                for known, recorded in zip(live[: num_revealed + 1], run, strict=False)
            )
        }
        assert {match.row for match in estimate.matches} == expected if estimate else not expected


@law
@given(many_runs, st.data())
def test_extending_stage_by_stage_equals_matching_the_whole_prefix(
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
    original = matcher_of([graph.stages for graph in past])
    reordered = matcher_of([shuffled(data.draw, graph).stages for graph in past])
    reordered_live = shuffled(data.draw, live).stages
    assert estimates(original, live.stages) == estimates(reordered, reordered_live)


@law
@given(many_runs, st.integers(1, 4), st.data())
def test_the_order_of_the_past_runs_does_not_matter(
    past: list[Run], best: int, data: st.DataObject
) -> None:
    live = data.draw(live_runs(past))
    order = data.draw(st.permutations(range(len(past))))
    original = estimates(matcher_of(past), live, best)
    reordered = estimates(matcher_of([past[row] for row in order]), live, best)
    for one, other in zip(original, reordered, strict=True):
        assert_same(one, other)
        if one and other:
            assert {match.row for match in one.matches} == {order[m.row] for m in other.matches}


@law
@given(many_runs, kernels, st.data())
def test_a_pattern_of_weight_n_counts_as_much_as_n_equal_patterns(
    past: list[Run], kernel: StageKernel, data: st.DataObject
) -> None:
    """If `best` covers all of them: for `best` a pattern counts as one, whatever its weight."""
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
def test_with_best_1_only_the_nearest_runs_match(past: list[Run], data: st.DataObject) -> None:
    live = data.draw(live_runs(past))
    matcher = matcher_of(past)
    for num_revealed, stage in enumerate(live):
        match = matcher.match(live[:num_revealed])
        from_nearest = match.estimate(calls_of(stage), best=1)
        from_all = match.estimate(calls_of(stage), best=len(past))
        if from_nearest is None or from_all is None:
            assert from_nearest is from_all
            continue
        lowest = min(match.squared[each.row] for each in from_all.matches)
        nearest = {each.row for each in from_all.matches if match.squared[each.row] == lowest}
        assert {each.row for each in from_nearest.matches} == nearest


@law
@given(many_runs, kernels, st.data())
def test_a_run_equal_to_the_live_one_has_similarity_1(
    past: list[Run], kernel: StageKernel, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(past) - 1))
    for estimate in estimates(matcher_of(past, kernel), past[row])[:-1]:
        assert estimate is not None
        assert estimate.matches[0].similarity == 1.0
        assert row in {match.row for match in estimate.matches if match.similarity == 1.0}


@law
@given(many_runs, st.data())
def test_a_call_that_no_past_run_made_matches_none(past: list[Run], data: st.DataObject) -> None:
    live = data.draw(live_runs(past))
    new_stage = chain(("m/never-seen", 1, 1.0))[0]
    match = matcher_of(past).match(live)
    assert match.estimate([("llm", "m/never-seen")]) is None
    assert match.extend(new_stage).estimate() is None
    assert match.estimate([("tool", "m/plan")]) is None


def test_a_model_step_and_a_tool_with_the_same_name_are_different_calls() -> None:
    matcher = matcher_of([staged_graph([[ToolNode("search", 1.0)]]).stages])
    assert matcher.begin().estimate([("llm", "search")]) is None
    assert matcher.begin().estimate([("tool", "search")]) is not None


def test_without_past_runs_there_is_no_estimate() -> None:
    empty = matcher_of([])
    assert empty.begin().estimate() is None
    assert empty.match(chain(("plan", 1, 1.0), ("act", 1, 1.0))).estimate() is None


def test_a_live_run_longer_than_all_past_ones_matches_none() -> None:
    matcher = matcher_of([chain(("plan", 1, 1.0), ("act", 1, 1.0))])
    live = chain(*(("plan", 1, 1.0), ("act", 1, 1.0)) * 3)
    is_missing = [estimate is None for estimate in estimates(matcher, live)]
    assert is_missing == [False] * 2 + [True] * 5


def test_a_past_run_without_stages_does_not_match() -> None:
    matcher = matcher_of([(), chain(("plan", 1, 1.0))])
    estimate = matcher.begin().estimate()
    assert estimate is not None
    assert [match.row for match in estimate.matches] == [1]


def test_a_more_similar_run_has_a_higher_weight() -> None:
    """In the past runs a long second stage follows a long first answer; the live answer is long."""
    short = chain(("plan", 10, 1.0), ("act", 10, 1.0))
    long = chain(("plan", 1000, 1.0), ("act", 10, 9.0))
    live = chain(("plan", 900, 1.0))
    estimate = matcher_of([short, long]).match(live).estimate()
    assert estimate is not None
    assert [match.row for match in estimate.matches] == [1, 0]
    assert estimate.outlook.stage_s > 8.0
    assert estimate.share_before == pytest.approx(
        1.0 / (estimate.outlook.elapsed_s + estimate.outlook.rest_s)
    )


def test_the_nearest_run_has_the_highest_weight_even_if_all_similarities_are_0() -> None:
    near = chain(("plan", 10_000, 1.0), ("act", 1, 3.0))
    far = chain(("plan", 1, 1.0), ("act", 1, 1.0))
    matcher = matcher_of([far, near], StageKernel((0.01, 1.0, 1.0)))
    estimate = matcher.match(chain(("plan", 10**9, 1.0))).estimate()
    assert estimate is not None
    assert estimate.matches[0].similarity == 0.0
    assert (estimate.matches[0].row, estimate.matches[0].weight) == (1, 1.0)
    assert estimate.outlook.stage_s == 3.0


def test_runs_exactly_as_near_as_the_last_match_are_included() -> None:
    equal = [chain(("plan", 5, 1.0), ("act", 1, seconds)) for seconds in (1.0, 2.0, 3.0)]
    estimate = matcher_of(equal).match(equal[0][:1]).estimate(best=1)
    assert estimate is not None
    assert [match.row for match in estimate.matches] == [2, 1, 0]
    assert estimate.outlook.stage_s == pytest.approx(2.0)


def test_patterns_with_further_calls_in_the_stage_still_match() -> None:
    """Patterns without a known call are pruned; one that also calls a tool is not."""
    plan = [LlmNode("plan", 1, 1, 1.0)]
    both = staged_graph([plan, [LlmNode("act", 1, 1, 1.0), ToolNode("search", 1.0)]]).stages
    only = staged_graph([plan, [LlmNode("act", 1, 1, 1.0)]]).stages
    match = matcher_of([both, only]).match(both[:1])
    one = match.estimate([("llm", "act")])
    other = match.estimate([("llm", "act"), ("tool", "search")])
    assert one is not None
    assert other is not None
    assert {each.row for each in one.matches} == {0, 1}
    assert {each.row for each in other.matches} == {0}


def test_the_spread_is_the_standard_deviation_of_the_matches_shares() -> None:
    equal = matcher_of([chain(("plan", 5, 1.0), ("act", 1, 1.0))] * 3)
    different = matcher_of([chain(("plan", 5, 1.0), ("act", 1, s)) for s in (1.0, 3.0)])
    one, other = equal.begin().estimate(), different.begin().estimate()
    assert one is not None
    assert other is not None
    assert one.spread == pytest.approx(0.0)
    assert other.spread == pytest.approx(0.125)  # shares of 1/2 and 1/4


def test_similarity_does_not_depend_on_the_number_of_equally_different_stages() -> None:
    """Otherwise the similarity of long prefixes would be low only because of their length."""
    past, live = chain(*(("plan", 10, 1.0),) * 5), chain(*(("plan", 100, 1.0),) * 4)
    difference = math.log(101.0 / 11.0)
    for num_revealed in range(1, 5):
        estimate = matcher_of([past]).match(live[:num_revealed]).estimate()
        assert estimate is not None
        assert estimate.matches[0].similarity == pytest.approx(math.exp(-(difference**2) / 2))


def test_a_matcher_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        matcher_of([]).kernel = StageKernel()  # type: ignore[misc]
