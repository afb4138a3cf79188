"""Fitted bandwidths: the same for the same runs, wide where an attribute foretells nothing."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given

from patterns import (
    LlmNode,
    Matcher,
    Stage,
    StageKernel,
    accumulated_shares,
    fit_kernel,
    tabulate,
)
from patterns.features import ATTRIBUTES
from patterns.fitting import MIN_PATTERNS
from tests.unit.patterns.pattern_strategies import chain, law, many_runs, staged_graph

Run = tuple[Stage, ...]
OUTPUT, TOOL, INPUT = range(len(ATTRIBUTES))


def structured_runs(num: int, *, foretells: int, seed: int) -> list[Run]:
    """Runs whose second stage lasts as an attribute of the first one says; the other is noise.

    Both attributes have the same distribution.
    """
    rng = random.Random(seed)
    found = []
    for _ in range(num):
        lengths = {place: round(rng.lognormvariate(5.0, 1.0)) for place in (OUTPUT, INPUT)}
        plan = LlmNode("plan", lengths[INPUT], lengths[OUTPUT], 1.0)
        act = LlmNode("act", 100, 100, lengths[foretells] / 100.0)
        found.append(staged_graph([[plan], [act], [LlmNode("sum", 100, 100, 1.0)]]).stages)
    return found


def left_out_error(runs: Sequence[Run], kernel: StageKernel) -> float:
    """Mean relative error of the accumulated share, each run foretold by all others."""
    errors = []
    for row, live in enumerate(runs):
        others = [run for other, run in enumerate(runs) if other != row]
        matcher = Matcher(tabulate(others), kernel, np.ones(len(others)))
        for num_revealed, share in enumerate(accumulated_shares(live)):
            found = matcher.match(live[:num_revealed]).estimate() if num_revealed else None
            if found:
                errors.append(abs(found.outlook.share / share - 1.0))
    return float(np.mean(errors))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("foretells", "noise"), [(OUTPUT, INPUT), (INPUT, OUTPUT)])
def test_noise_gets_a_wider_bandwidth_than_what_determines_the_outcome(
    foretells: int, noise: int, seed: int
) -> None:
    kernel = fit_kernel(tabulate(structured_runs(60, foretells=foretells, seed=seed)))
    assert kernel.bandwidths[noise] > 2 * kernel.bandwidths[foretells]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("foretells", [OUTPUT, INPUT])
def test_a_fitted_kernel_errs_less_than_the_default_one_where_there_is_structure(
    foretells: int, seed: int
) -> None:
    runs = structured_runs(60, foretells=foretells, seed=seed)
    fitted = left_out_error(runs, fit_kernel(tabulate(runs)))
    assert fitted < 0.9 * left_out_error(runs, StageKernel())


@law
@given(many_runs)
def test_fitting_the_same_runs_again_gives_the_same_kernel(past: list[Run]) -> None:
    repeated = [*past] * MIN_PATTERNS
    assert fit_kernel(tabulate(repeated)) == fit_kernel(tabulate(repeated))


@law
@given(many_runs)
def test_whatever_the_runs_every_bandwidth_is_above_0(past: list[Run]) -> None:
    for runs in ([], past, [*past] * MIN_PATTERNS):
        assert all(width > 0.0 for width in fit_kernel(tabulate(runs)).bandwidths)


def test_with_few_patterns_the_spread_of_each_attribute_is_its_bandwidth() -> None:
    few = [chain(("plan", tokens, 1.0), ("act", 7, 1.0)) for tokens in (0, 0, 0, 0)]
    assert fit_kernel(tabulate([])).bandwidths == (1.0, 1.0, 1.0)
    assert fit_kernel(tabulate(few)).bandwidths == (1.0, 1.0, 1.0)
    spread = [*few[:2], *(chain(("plan", 99, 1.0), ("act", 7, 1.0)),) * 2]
    # One stage of two is spread, by log(100) / 2 about its mean.
    expected = math.log(100.0) / 2 / math.sqrt(2.0)
    assert fit_kernel(tabulate(spread)).bandwidths == pytest.approx((expected, 1.0, 1.0))


def test_runs_that_all_begin_otherwise_can_be_fitted() -> None:
    strangers = [chain((f"plan-{n}", n, 1.0), ("act", n, 2.0)) for n in range(12)]
    assert all(math.isfinite(width) for width in fit_kernel(tabulate(strangers)).bandwidths)


def test_more_runs_than_are_looked_at_can_be_fitted() -> None:
    runs = structured_runs(250, foretells=OUTPUT, seed=0)
    kernel = fit_kernel(tabulate(runs))
    assert kernel.bandwidths[INPUT] > kernel.bandwidths[OUTPUT]
