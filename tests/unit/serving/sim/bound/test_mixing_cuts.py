"""Mixing cuts: fractions of several chains violate them, whole programs never do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.bound.mixing_cuts import Chains, violated_cuts

BINS = 4


def chains(*rows: tuple[float, int, int]) -> Chains:
    """Chains of rows (steps, first bin, last bin); their columns are 10, 11, ..."""
    steps, first_bin, last_bin = (np.array(each) for each in zip(*rows, strict=True))
    return Chains(10 + np.arange(len(rows)), steps.astype(np.float64), first_bin, last_bin)


def test_fractions_that_fit_separately_are_cut_off_together() -> None:
    same_bin = chains((400.0, 0, 0), (600.0, 0, 0), (300.0, 0, 0))
    (cut,) = violated_cuts(same_bin, np.array([0.6, 0.4, 0.8]), np.array([240.0]))
    assert cut.columns.tolist() == [11, 10, 12]
    assert cut.factors.tolist() == [200.0, 100.0, 300.0]
    assert (cut.first_bin, cut.last_bin) == (0, 0)


def test_a_mixture_of_two_choices_is_not_cut_off() -> None:
    """The mean of two choices: 600 steps and both programs, or 300 steps and the shorter one."""
    mixed = np.array([0.5, 1.0])
    assert not list(
        violated_cuts(chains((600.0, 0, 1), (300.0, 0, 1)), mixed, np.array([200, 250.0]))
    )
    assert list(violated_cuts(chains((600.0, 0, 1), (300.0, 0, 1)), mixed, np.array([200, 249.0])))


def test_chains_in_different_bins_share_no_steps() -> None:
    separate = chains((600.0, 0, 0), (300.0, 1, 1))
    assert not list(violated_cuts(separate, np.array([0.4, 0.8]), np.array([240.0, 240.0])))


def test_a_chain_within_a_longer_span_is_part_of_that_span_s_cut() -> None:
    nested = chains((600.0, 0, 1), (300.0, 1, 1))
    (cut,) = violated_cuts(nested, np.array([0.5, 1.0]), np.array([100.0, 300.0]))
    assert (cut.first_bin, cut.last_bin) == (0, 1)
    assert cut.factors.tolist() == [300.0, 300.0]


spans = st.tuples(st.integers(0, BINS - 1), st.integers(0, BINS - 1)).map(sorted)
rows = st.tuples(st.floats(1, 1000), spans).map(lambda row: (row[0], *row[1]))


@given(
    drawn=st.lists(st.tuples(rows, st.booleans(), st.floats(0, 1)), min_size=1, max_size=12),
    spare=st.lists(st.floats(0, 100), min_size=BINS, max_size=BINS),
)
def test_whole_programs_with_enough_steps_violate_no_cut(
    drawn: list[tuple[tuple[float, int, int], bool, float]], spare: list[float]
) -> None:
    """Cuts that some fractions violate hold for whole programs with just enough steps."""
    programs = chains(*(row for row, _, _ in drawn))
    whole = np.array([is_served for _, is_served, _ in drawn], dtype=np.float64)
    steps = np.array(spare)
    for index in np.flatnonzero(whole):
        first, last = programs.first_bin[index], programs.last_bin[index]
        steps[last] += max(programs.steps[index] - steps[first : last + 1].sum(), 0.0)
    fractions = np.array([fraction for _, _, fraction in drawn])
    for cut in violated_cuts(programs, fractions, np.zeros(BINS)):
        needed = cut.factors @ whole[cut.columns - 10]
        assert needed <= steps[cut.first_bin : cut.last_bin + 1].sum() * (1 + 1e-9)
    assert not list(violated_cuts(programs, whole, steps))


@given(
    drawn=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 8)), min_size=1, max_size=6),
)
def test_the_cut_of_a_span_is_the_most_violated_one(drawn: list[tuple[int, int]]) -> None:
    """Compared with the cuts of all subsets of the programs."""
    lengths = np.array([length for length, _ in drawn], dtype=np.float64)
    served = np.array([eighths / 8 for _, eighths in drawn])
    worst = 0.0
    for chosen in product([False, True], repeat=len(drawn)):
        subset = np.flatnonzero(chosen)
        subset = subset[np.argsort(-lengths[subset], kind="stable")]
        worst = max(worst, float(-np.diff(lengths[subset], append=0.0) @ served[subset]))
    one_bin = chains(*((length, 0, 0) for length in lengths))
    cuts = list(violated_cuts(one_bin, served, np.zeros(1)))
    assert sum(cut.factors @ served[cut.columns - 10] for cut in cuts) == worst
    assert not list(violated_cuts(one_bin, served, np.array([worst])))


@pytest.mark.parametrize("served", [0.0, 1.0])
def test_a_single_chain_violates_its_cut_only_without_enough_steps(served: float) -> None:
    chain = chains((300.0, 0, 0))
    assert bool(list(violated_cuts(chain, np.array([served]), np.array([299.0])))) == bool(served)
    assert not list(violated_cuts(chain, np.array([served]), np.array([300.0])))
