"""Shares ascend to 1, and a stage never gets more than the time left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    Formulation,
    InvalidShare,
    Outlook,
    Stage,
    accumulated_shares,
    amortized_s,
    share_of,
    stage_deadlines_s,
    tabulate,
)
from patterns.nodes import MAX_SECONDS
from tests.unit.patterns.pattern_strategies import chain, durations, graphs, law, runs

deadlines = st.floats(1e-3, 1e9)
shares = st.floats(0.0, 1.0)

THREE = chain(("plan", 1, 2.0), ("act", 1, 5.0), ("sum", 1, 3.0))


@law
@given(graphs())
def test_accumulated_shares_ascend_from_above_0_to_exactly_1(graph) -> None:
    shares = accumulated_shares(graph.stages)
    assert len(shares) == len(graph.stages)
    assert list(shares) == sorted(set(shares))
    assert all(0.0 < share <= 1.0 for share in shares)
    assert shares[-1:] in ((), (1.0,))


@law
@given(st.lists(st.sampled_from([0.0, 5e-324, MAX_SECONDS]), min_size=1, max_size=30))
def test_shares_ascend_even_with_stages_of_0_seconds_and_of_decades(seconds: list[float]) -> None:
    shares = accumulated_shares(chain(*(("step", 1, each) for each in seconds)))
    assert list(shares) == sorted(set(shares))
    assert shares[0] > 0.0
    assert shares[-1] == 1.0


def test_the_accumulated_share_is_the_fraction_of_the_time_that_has_passed() -> None:
    assert accumulated_shares(THREE) == pytest.approx((0.2, 0.7, 1.0))


@law
@given(runs, deadlines)
def test_a_stages_deadline_is_never_earlier_than_that_of_the_previous_stage(
    stages: tuple[Stage, ...], deadline_s: float
) -> None:
    deadlines_s = stage_deadlines_s(accumulated_shares(stages), deadline_s)
    assert list(deadlines_s) == sorted(deadlines_s)
    assert all(0.0 < due_s <= deadline_s for due_s in deadlines_s)
    assert deadlines_s[-1] == deadline_s


@law
@given(shares, shares, deadlines)
def test_a_stage_gets_at_most_the_time_left_and_0_only_without_a_share_of_its_own(
    one: float, other: float, left_s: float
) -> None:
    before, share = sorted((one, other))
    if share == 0.0:
        return
    stage_s = amortized_s(left_s, share_before=before, share=share)
    assert 0.0 <= stage_s <= left_s
    assert stage_s > 0.0 or share - before < 1e-300


@law
@given(runs, deadlines)
def test_a_stage_on_schedule_is_due_at_its_share_of_the_deadline(
    stages: tuple[Stage, ...], deadline_s: float
) -> None:
    before = 0.0
    for share in accumulated_shares(stages):
        now_s = before * deadline_s
        stage_s = amortized_s(deadline_s - now_s, share_before=before, share=share)
        assert now_s + stage_s == pytest.approx(share * deadline_s)
        before = share


@law
@given(shares, shares, deadlines, deadlines)
def test_saved_time_is_divided_among_all_later_stages(
    one: float, other: float, left_s: float, saved_s: float
) -> None:
    before, share = sorted((one, other))
    if share == 0.0:
        return
    planned_s = amortized_s(left_s, share_before=before, share=share)
    with_saved_s = amortized_s(left_s + saved_s, share_before=before, share=share)
    assert planned_s <= with_saved_s <= left_s + saved_s
    if (share - before) > 0.01 and saved_s > left_s / 100:
        assert planned_s < with_saved_s


@law
@given(st.floats(-1e9, 1e9), st.floats(0.0, 1.0))
def test_the_last_stage_gets_all_the_time_left(left_s: float, before: float) -> None:
    assert amortized_s(left_s, share_before=before, share=1.0) == left_s


@law
@given(st.floats(-1e9, -1e-3), shares, shares)
def test_after_the_deadline_a_stage_gets_no_time(left_s: float, one: float, other: float) -> None:
    before, share = sorted((one, other))
    if share > 0.0:
        assert left_s <= amortized_s(left_s, share_before=before, share=share) <= 0.0


@pytest.mark.parametrize(
    ("before", "share"),
    [(0.5, 0.4), (0.0, 0.0), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 0.5), (0.5, float("nan"))],
)
def test_shares_that_do_not_ascend_within_0_and_1_are_refused(before: float, share: float) -> None:
    with pytest.raises(InvalidShare):
        amortized_s(10.0, share_before=before, share=share)
    with pytest.raises(InvalidShare):
        stage_deadlines_s((before, share), 10.0)


def test_a_share_may_equal_the_previous_one() -> None:
    assert stage_deadlines_s((0.5, 0.5, 1.0), 8.0) == (4.0, 4.0, 8.0)
    assert amortized_s(8.0, share_before=0.5, share=0.5) == 0.0


def test_each_formulation_follows_its_formula() -> None:
    second = Outlook(*tabulate([THREE]).outlooks[0, 1].tolist())
    assert share_of(second) == pytest.approx(0.7)
    assert share_of(second, Formulation.ACCUMULATED) == pytest.approx(0.7)
    assert share_of(second, Formulation.STAGE) == pytest.approx(0.5)
    assert share_of(second, Formulation.REMAINING) == pytest.approx(5.0 / 8.0)


@law
@given(runs)
def test_the_share_of_an_outlook_is_the_patterns_accumulated_share(
    stages: tuple[Stage, ...],
) -> None:
    outlooks = [Outlook(*row.tolist()) for row in tabulate([stages]).outlooks[0]]
    for outlook, share in zip(outlooks, accumulated_shares(stages), strict=True):
        assert outlook.share == share
        for formulation in Formulation:
            assert 0.0 < share_of(outlook, formulation) <= 1.0 + 1e-12
        assert share_of(outlook) == pytest.approx(share)


@law
@given(durations)
def test_the_share_of_an_only_stage_is_1(seconds: float) -> None:
    assert accumulated_shares(chain(("only", 1, seconds))) == (1.0,)
