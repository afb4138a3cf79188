"""LengthForest: the same quantiles as quantile-forest, from plain arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.analyzer.distribution import LengthDistribution
from serving.analyzer.forest import LengthForest, arrays_of, fit_forest, fit_regressor
from tests.strategies import law

LEVELS = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
lengths = st.lists(st.integers(0, 4000), min_size=1, max_size=60).map(sorted)
levels = st.floats(-3, 4)


def data(num_calls: int, *, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    vectors = rng.random((num_calls, 8)).astype(np.float32)
    vectors[:, 1] = np.round(vectors[:, 1], 1)  # ties
    tokens = 400 * vectors[:, 0] * rng.lognormal(0, 0.5, num_calls)
    tokens[rng.random(num_calls) < 0.2] = 1024  # an atom
    return vectors, tokens.astype(np.int64)


@pytest.mark.parametrize("num_calls", [1, 30, 600])
def test_quantiles_equal_those_of_quantile_forest(num_calls: int) -> None:
    """The trees, weights and interpolation of log(1 + tokens) are the same."""
    vectors, tokens = data(num_calls, seed=1)
    regressor = fit_regressor(vectors, tokens, seed=0)
    forest = LengthForest(arrays_of(regressor, tokens))
    asked = np.vstack((vectors, data(50, seed=2)[0]))
    theirs = np.expm1(regressor.predict(asked, quantiles=LEVELS))
    ours = [forest.quantiles(vector, LEVELS) for vector in asked]
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-6)


def test_a_value_on_a_threshold_takes_the_same_branch_as_in_scikit_learn() -> None:
    """Thresholds are rounded to float32; no float32 feature may change its branch by that."""
    vectors, tokens = data(400, seed=3)
    regressor = fit_regressor(vectors, tokens, seed=0)
    forest = LengthForest(arrays_of(regressor, tokens))
    thresholds = np.concatenate([tree.tree_.threshold for tree in regressor.estimators_[:10]])
    edges = thresholds[(thresholds > 0) & (thresholds < 1)].astype(np.float32)[:200]
    asked = np.tile(edges[:, None], (1, vectors.shape[1]))
    theirs = np.expm1(regressor.predict(asked, quantiles=[0.5]))
    ours = [forest.quantiles(vector, [0.5])[0] for vector in asked]
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-6)


def test_the_same_seed_gives_the_same_forest_and_another_seed_another() -> None:
    vectors, tokens = data(300, seed=1)
    first, second, other = (
        fit_forest(vectors, tokens, seed=seed).arrays.thresholds for seed in (4, 4, 5)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@law
@given(lengths, st.floats(0, 1))
def test_quantiles_are_those_of_numpy_on_logarithms(answers: list[int], level: float) -> None:
    expected = np.expm1(np.quantile(np.log1p(answers), level))
    [quantile] = LengthDistribution.of(answers).quantiles([level])
    assert quantile == pytest.approx(expected, rel=1e-9, abs=1e-6)


@law
@given(lengths, st.lists(levels, min_size=2, max_size=2))
def test_a_higher_level_never_has_a_lower_quantile(answers: list[int], pair: list[float]) -> None:
    low, high = LengthDistribution.of(answers).quantiles(sorted(pair))
    assert 0 <= low <= high


@law
@given(lengths, st.integers(0, 5000))
def test_the_level_of_a_length_is_the_lowest_with_a_quantile_that_reaches_it(
    answers: list[int], tokens: int
) -> None:
    distribution = LengthDistribution.of(answers)
    level = distribution.level(tokens)
    at, below = distribution.quantiles([level, level - 1e-4])
    assert at == pytest.approx(tokens, abs=1e-5)
    assert below < tokens or tokens == 0


@law
@given(lengths)
def test_the_level_of_an_atom_is_the_probability_of_shorter_lengths(answers: list[int]) -> None:
    distribution = LengthDistribution.of([*answers, 5000, 5000, 5000])
    assert distribution.level(5000) == pytest.approx(len(answers) / (len(answers) + 2))


def test_the_level_of_a_seen_length_has_no_rounding_error() -> None:
    for tokens in range(1100, 1300):
        assert LengthDistribution.of([tokens]).level(tokens) == 0.0


def test_levels_beyond_all_lengths_are_extrapolated_geometrically() -> None:
    distribution = LengthDistribution.of([9, 99])
    assert distribution.level(199) == pytest.approx(1 + np.log(2))
    assert distribution.level(4) == pytest.approx(-np.log(2))
    assert distribution.quantiles([1 + np.log(2), -np.log(2)]).tolist() == [199.0, 4.0]
