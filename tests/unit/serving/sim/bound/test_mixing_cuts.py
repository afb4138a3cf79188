"""Cuts of the upper bound: broken by fractions of several chains, never by whole programs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.bound.mixing_cuts import Chains, broken_cuts

BINS = 4


def chains(*rows: tuple[float, int, int]) -> Chains:
    """Of (steps, begin, end); their columns are 10, 11, ..."""
    steps, begin, end = (np.array(each) for each in zip(*rows, strict=True))
    return Chains(10 + np.arange(len(rows)), steps.astype(np.float64), begin, end)


def test_fractions_that_each_fit_alone_are_cut_off_together() -> None:
    side_by_side = chains((400.0, 0, 0), (600.0, 0, 0), (300.0, 0, 0))
    (cut,) = broken_cuts(side_by_side, np.array([0.6, 0.4, 0.8]), np.array([240.0]))
    assert cut.columns.tolist() == [11, 10, 12]
    assert cut.factors.tolist() == [200.0, 100.0, 300.0]
    assert (cut.begin, cut.end) == (0, 0)


def test_a_mixture_of_two_choices_is_not_cut_off() -> None:
    """Half of the time 600 steps and both programs, half of it 300 and the shorter one alone."""
    mixed = np.array([0.5, 1.0])
    assert not list(
        broken_cuts(chains((600.0, 0, 1), (300.0, 0, 1)), mixed, np.array([200, 250.0]))
    )
    assert list(broken_cuts(chains((600.0, 0, 1), (300.0, 0, 1)), mixed, np.array([200, 249.0])))


def test_chains_in_other_bins_share_no_steps() -> None:
    apart = chains((600.0, 0, 0), (300.0, 1, 1))
    assert not list(broken_cuts(apart, np.array([0.4, 0.8]), np.array([240.0, 240.0])))


def test_a_chain_with_little_time_counts_among_those_with_more() -> None:
    nested = chains((600.0, 0, 1), (300.0, 1, 1))
    (cut,) = broken_cuts(nested, np.array([0.5, 1.0]), np.array([100.0, 300.0]))
    assert (cut.begin, cut.end) == (0, 1)
    assert cut.factors.tolist() == [300.0, 300.0]


spans = st.tuples(st.integers(0, BINS - 1), st.integers(0, BINS - 1)).map(sorted)
rows = st.tuples(st.floats(1, 1000), spans).map(lambda row: (row[0], *row[1]))


@given(
    drawn=st.lists(st.tuples(rows, st.booleans(), st.floats(0, 1)), min_size=1, max_size=12),
    spare=st.lists(st.floats(0, 100), min_size=BINS, max_size=BINS),
)
def test_whole_programs_that_have_their_steps_keep_every_cut(
    drawn: list[tuple[tuple[float, int, int], bool, float]], spare: list[float]
) -> None:
    """The cuts are those that some fractions break; the steps are the least for the whole ones."""
    found = chains(*(row for row, _, _ in drawn))
    whole = np.array([is_served for _, is_served, _ in drawn], dtype=np.float64)
    steps = np.array(spare)
    for number in np.flatnonzero(whole):
        begin, end = found.begin[number], found.end[number]
        steps[end] += max(found.steps[number] - steps[begin : end + 1].sum(), 0.0)
    fractions = np.array([fraction for _, _, fraction in drawn])
    for cut in broken_cuts(found, fractions, np.zeros(BINS)):
        asked = cut.factors @ whole[cut.columns - 10]
        assert asked <= steps[cut.begin : cut.end + 1].sum() * (1 + 1e-9)
    assert not list(broken_cuts(found, whole, steps))


@given(
    drawn=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 8)), min_size=1, max_size=6),
)
def test_of_all_cuts_it_is_the_one_that_is_broken_most(drawn: list[tuple[int, int]]) -> None:
    """Any of the programs may be left out of a cut."""
    lengths = np.array([length for length, _ in drawn], dtype=np.float64)
    served = np.array([eighths / 8 for _, eighths in drawn])
    worst = 0.0
    for chosen in product([False, True], repeat=len(drawn)):
        some = np.flatnonzero(chosen)
        some = some[np.argsort(-lengths[some], kind="stable")]
        worst = max(worst, float(-np.diff(lengths[some], append=0.0) @ served[some]))
    one_bin = chains(*((length, 0, 0) for length in lengths))
    cuts = list(broken_cuts(one_bin, served, np.zeros(1)))
    assert sum(cut.factors @ served[cut.columns - 10] for cut in cuts) == worst
    assert not list(broken_cuts(one_bin, served, np.array([worst])))


@pytest.mark.parametrize("served", [0.0, 1.0])
def test_a_single_chain_is_cut_off_only_where_its_steps_are_missing(served: float) -> None:
    one = chains((300.0, 0, 0))
    assert bool(list(broken_cuts(one, np.array([served]), np.array([299.0])))) == bool(served)
    assert not list(broken_cuts(one, np.array([served]), np.array([300.0])))
