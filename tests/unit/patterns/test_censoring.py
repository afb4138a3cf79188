"""Runs that were cut off count as censored observations: neither as whole, nor not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import KeptPattern, LlmNode, Matcher, Outlook, PatternLibrary, PatternTable, Stage
from patterns.censoring import completed_outlooks
from patterns.features import Floats, tabulate
from patterns.fitting import fit_kernel
from patterns.kernel import StageKernel
from patterns.stages import summarise
from tests.unit.patterns.pattern_strategies import runs

Run = tuple[Stage, ...]


def a_run(*names: str, tokens: int = 10, seconds: float = 1.0) -> Run:
    """A run with one LLM call in each stage."""
    return tuple(
        summarise(index, (0,), [LlmNode(f"demo:{name}", tokens, tokens, seconds)])
        for index, name in enumerate(names)
    )


def table_of(whole: Sequence[Run], cut_off: Sequence[Run]) -> PatternTable:
    """The table of whole runs, followed by runs that were cut off."""
    flags = [False] * len(whole) + [True] * len(cut_off)
    return tabulate([*whole, *cut_off], is_cut_off=flags)


def completed(table: PatternTable, weights: Sequence[float] | None = None) -> Floats:
    return completed_outlooks(table, np.array(weights or [1.0] * len(table)))


def outlook_of(outlooks: Floats, row: int, stage: int = 0) -> Outlook:
    return Outlook(*outlooks[row, stage].tolist())


@given(st.lists(runs, max_size=6))
def test_without_runs_that_were_cut_off_nothing_changes(past: list[Run]) -> None:
    table = tabulate(past)
    assert completed(table) is table.outlooks


@given(st.lists(runs, max_size=6), st.data())
def test_completed_outlooks_are_no_shorter_and_consistent(
    past: list[Run], data: st.DataObject
) -> None:
    """The rest is this stage and all later ones; shares ascend to 1 in whole runs."""
    flags = data.draw(st.lists(st.booleans(), min_size=len(past), max_size=len(past)))
    table = tabulate(past, is_cut_off=flags)
    before = table.outlooks.copy()
    outlooks = completed(table)
    assert (table.outlooks == before).all()
    share = Outlook._fields.index("share")
    grows = [place for place in range(len(Outlook._fields)) if place != share]
    assert (outlooks[:, :, grows] >= before[:, :, grows] - 1e-9).all()
    assert (outlooks[~table.is_cut_off] == before[~table.is_cut_off]).all()
    for row, stages in enumerate(past):
        for index in range(len(stages)):
            each = outlook_of(outlooks, row, index)
            assert each.rest_s == pytest.approx(each.stage_s + each.later_s)
            total_s = each.elapsed_s + each.rest_s
            assert each.share == pytest.approx((each.elapsed_s + each.stage_s) / total_s)


def test_equal_stages_are_counted_as_kaplan_and_meier_do() -> None:
    """Runs of 1, 2 and 3 stages ended; two were cut off in their second and third one.

    The estimate: S(1) = 4/5, S(2) = 4/5 * 2/3 and S(3) = 0, as the run that was cut off last
    is taken to end there; the mean is 1 + 4/5 + 8/15 = 7/3.
    """
    whole = [a_run(*["x"] * count) for count in (1, 2, 3)]
    table = table_of(whole, [a_run("x", "x"), a_run("x", "x", "x")])
    outlooks = completed(table)
    num_stages = [1 + outlook_of(outlooks, row).later_llm_calls for row in range(len(table))]
    assert num_stages == pytest.approx([1, 2, 3, 2 + 2 / 3, 3])
    assert np.mean(num_stages) == pytest.approx(1 + 4 / 5 + 8 / 15)
    cut_off = outlook_of(outlooks, 3)
    assert cut_off.rest_s == pytest.approx(2 + 2 / 3)
    assert cut_off.later_output_tokens == pytest.approx(10 * (1 + 2 / 3))
    assert cut_off.share == pytest.approx(1 / (2 + 2 / 3))
    assert outlook_of(outlooks, 3, stage=1).later_s == pytest.approx(2 / 3)


def test_the_stage_in_which_a_run_was_cut_off_is_completed_but_not_shortened() -> None:
    """Its answer had no tokens yet; it had taken more time than the other run's stage took."""
    whole = a_run("plan", "write", tokens=100, seconds=2.0)
    first, last = a_run("plan", "write", tokens=0, seconds=5.0)
    outlooks = completed(table_of([whole], [(first, last)]))
    assert outlook_of(outlooks, 1).later_output_tokens == 100
    assert outlook_of(outlooks, 1).later_s == 5
    assert outlook_of(outlooks, 1, stage=1).stage_s == 5
    assert outlook_of(outlooks, 1, stage=1).share == 1


def test_a_run_is_completed_from_those_with_its_last_calls_at_that_stage_only() -> None:
    ends = a_run("plan", "write")
    goes_on = a_run("plan", "search", "search", "write")
    in_search, in_write, alone = a_run("plan", "search"), a_run("plan", "write"), a_run("other")
    outlooks = completed(table_of([ends, goes_on], [in_search, in_write, alone]))
    later = [outlook_of(outlooks, row).later_llm_calls for row in range(5)]
    assert later == [1, 3, 3, 1, 0]


def test_a_pattern_counts_as_the_runs_that_it_represents() -> None:
    whole = [a_run("x"), a_run("x", "x")]
    outlooks = completed(table_of(whole, [a_run("x")]), weights=[1.0, 3.0, 1.0])
    assert outlook_of(outlooks, 2).later_llm_calls == 0.75


def test_with_half_of_the_runs_cut_off_the_mean_of_later_calls_is_near_the_truth() -> None:
    """As whole, or left out, they make runs look short: longer runs are cut off more often."""
    rng = random.Random(1)
    lengths = [rng.randint(1, 8) for _ in range(400)]
    truth = np.mean(lengths) - 1
    limits = [rng.randint(1, 10) for _ in lengths]
    past = [
        KeptPattern(key, a_run(*["x"] * min(length, limit)), 0.0, is_cut_off=limit <= length)
        for key, (length, limit) in enumerate(zip(lengths, limits, strict=True))
    ]
    assert 150 < sum(pattern.is_cut_off for pattern in past) < 250

    def predicted(patterns: Sequence[KeptPattern]) -> float:
        estimate = PatternLibrary(tuple(patterns)).matcher.begin().estimate(best=len(patterns))
        assert estimate is not None
        return estimate.outlook.later_llm_calls

    assert predicted(past) == pytest.approx(truth, rel=0.1)
    as_whole = [KeptPattern(each.key, each.stages, 0.0) for each in past]
    left_out = [each for each in past if not each.is_cut_off]
    assert predicted(as_whole) < 0.75 * truth
    assert predicted(left_out) < 0.75 * truth


def test_an_extended_library_completes_from_what_was_recorded() -> None:
    """Not from outlooks that were completed before, when fewer runs were known."""
    cut_off = KeptPattern(0, a_run("x"), 0.0, is_cut_off=True)
    library = PatternLibrary((cut_off,))
    for key, count in enumerate((2, 4), start=1):
        assert library.matcher.begin().estimate() is not None
        library = library.added([KeptPattern(key, a_run(*["x"] * count), 0.0)])
    assert outlook_of(library.matcher.outlooks, 0).later_llm_calls == 2
    assert library.table.is_cut_off.tolist() == [True, False, False]
    assert outlook_of(library.without([2]).matcher.outlooks, 0).later_llm_calls == 1


@pytest.mark.parametrize("by_silhouette", [False, True])
def test_a_run_that_was_cut_off_is_not_represented_by_one_that_ended_there(
    by_silhouette: bool,
) -> None:
    """Although their stages are equal: half of the runs like it went on, to 8 stages."""
    ended, goes_on = a_run(*["x"] * 3), a_run(*["x"] * 8)
    runs = [(ended, True)] * 20 + [(ended, False)] * 20 + [(goes_on, False)] * 20
    library = PatternLibrary(
        tuple(KeptPattern(key, run, 0.0, is_cut_off=cut) for key, (run, cut) in enumerate(runs))
    )
    compact = library.compacted(3, by_silhouette=by_silhouette)
    kept = [
        (pattern.weight, len(pattern.stages), pattern.is_cut_off) for pattern in compact.patterns
    ]
    assert kept == [(20.0, 3, True), (20.0, 3, False), (20.0, 8, False)]
    estimate = compact.matcher.begin().estimate()
    assert estimate is not None
    assert estimate.outlook.later_llm_calls == pytest.approx((2 + 7) / 2)


def test_a_fit_predicts_no_run_that_was_cut_off() -> None:
    """Of such runs alone nothing can be fitted: the bandwidths are the standard deviations."""
    rng = random.Random(2)
    counts = [rng.randint(2, 6) for _ in range(20)]
    past = [a_run(*["x"] * count, tokens=10 * count) for count in counts]
    fitted = fit_kernel(table_of(past, []))
    assert fitted.bandwidths != fit_kernel(table_of([], past)).bandwidths


def test_a_matcher_completes_once() -> None:
    table = table_of([a_run("x", "x")], [a_run("x")])
    matcher = Matcher(table, StageKernel(), np.ones(2))
    assert matcher.outlooks is matcher.outlooks
