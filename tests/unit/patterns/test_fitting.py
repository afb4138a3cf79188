"""Fitted bandwidths: equal for equal runs, and wide for an attribute that predicts nothing."""

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


def structured_runs(num: int, *, predictor: int, seed: int) -> list[Run]:
    """Runs in which one attribute of the first stage determines the time of the second.

    The other attribute of the first stage is noise with the same distribution.
    """
    rng = random.Random(seed)
    runs = []
    for _ in range(num):
        lengths = {index: round(rng.lognormvariate(5.0, 1.0)) for index in (OUTPUT, INPUT)}
        plan = LlmNode("plan", lengths[INPUT], lengths[OUTPUT], 1.0)
        act = LlmNode("act", 100, 100, lengths[predictor] / 100.0)
        runs.append(staged_graph([[plan], [act], [LlmNode("sum", 100, 100, 1.0)]]).stages)
    return runs


def leave_one_out_error(runs: Sequence[Run], kernel: StageKernel) -> float:
    """Mean relative error of the accumulated share, each run predicted from all others."""
    errors = []
    for row, live in enumerate(runs):
        others = [run for other, run in enumerate(runs) if other != row]
        matcher = Matcher(tabulate(others), kernel, np.ones(len(others)))
        for num_revealed, share in enumerate(accumulated_shares(live)):
            estimate = matcher.match(live[:num_revealed]).estimate() if num_revealed else None
            if estimate:
                errors.append(abs(estimate.outlook.share / share - 1.0))
    return float(np.mean(errors))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("predictor", "noise"), [(OUTPUT, INPUT), (INPUT, OUTPUT)])
def test_noise_gets_a_wider_bandwidth_than_an_attribute_that_predicts(
    predictor: int, noise: int, seed: int
) -> None:
    kernel = fit_kernel(tabulate(structured_runs(60, predictor=predictor, seed=seed)))
    assert kernel.bandwidths[noise] > 2 * kernel.bandwidths[predictor]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("predictor", [OUTPUT, INPUT])
def test_the_error_of_a_fitted_kernel_is_lower_than_that_of_the_default_one(
    predictor: int, seed: int
) -> None:
    runs = structured_runs(60, predictor=predictor, seed=seed)
    fitted = leave_one_out_error(runs, fit_kernel(tabulate(runs)))
    assert fitted < 0.9 * leave_one_out_error(runs, StageKernel())


@law
@given(many_runs)
def test_fitting_the_same_runs_again_gives_the_same_kernel(past: list[Run]) -> None:
    repeated = [*past] * MIN_PATTERNS
    assert fit_kernel(tabulate(repeated)) == fit_kernel(tabulate(repeated))


@law
@given(many_runs)
def test_every_fitted_bandwidth_is_above_0(past: list[Run]) -> None:
    for runs in ([], past, [*past] * MIN_PATTERNS):
        assert all(width > 0.0 for width in fit_kernel(tabulate(runs)).bandwidths)


def test_with_few_patterns_each_bandwidth_is_the_standard_deviation_of_its_attribute() -> None:
    few = [chain(("plan", tokens, 1.0), ("act", 7, 1.0)) for tokens in (0, 0, 0, 0)]
    assert fit_kernel(tabulate([])).bandwidths == (1.0, 1.0, 1.0)
    assert fit_kernel(tabulate(few)).bandwidths == (1.0, 1.0, 1.0)
    spread = [*few[:2], *(chain(("plan", 99, 1.0), ("act", 7, 1.0)),) * 2]
    # In one of the two stages the attribute deviates, by log(100) / 2 from its mean.
    expected = math.log(100.0) / 2 / math.sqrt(2.0)
    assert fit_kernel(tabulate(spread)).bandwidths == pytest.approx((expected, 1.0, 1.0))


def test_runs_that_all_begin_with_different_calls_can_be_fitted() -> None:
    runs = [chain((f"plan-{n}", n, 1.0), ("act", n, 2.0)) for n in range(12)]
    assert all(math.isfinite(width) for width in fit_kernel(tabulate(runs)).bandwidths)


def test_more_runs_than_the_sample_can_be_fitted() -> None:
    runs = structured_runs(250, predictor=OUTPUT, seed=0)
    kernel = fit_kernel(tabulate(runs))
    assert kernel.bandwidths[INPUT] > kernel.bandwidths[OUTPUT]
