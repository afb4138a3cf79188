"""LengthSketch: bounds on the output length, conditioned on the tokens generated so far."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from tests.strategies import law, sketches

plausible = sketches(st.integers(0, 4000).map(float))
levels = st.floats(0.001, 0.999)
generated_counts = st.integers(0, 5000)
TOLERANCE = 1e-6  # tokens: rounding error


@law
@given(plausible, levels, levels, generated_counts)
def test_a_higher_level_never_gives_a_lower_bound(
    sketch: LengthSketch, first: float, second: float, generated: int
) -> None:
    low, high = sorted((first, second))
    lower = sketch.upper(low, generated=generated)
    assert lower <= sketch.upper(high, generated=generated) + TOLERANCE


@law
@given(sketches(), levels, generated_counts)
def test_the_bound_leaves_at_least_one_more_token(
    sketch: LengthSketch, level: float, generated: int
) -> None:
    assert sketch.upper(level, generated=generated) >= generated + 1


@law
@given(plausible, levels, generated_counts, generated_counts)
def test_the_bound_never_falls_while_the_answer_grows(
    sketch: LengthSketch, level: float, first: int, second: int
) -> None:
    fewer, more = sorted((first, second))
    earlier = sketch.upper(level, generated=fewer)
    assert earlier <= sketch.upper(level, generated=more) + TOLERANCE


@law
@given(plausible, st.sampled_from(range(len(LENGTH_LEVELS) - 1)))
def test_before_the_first_token_the_quantiles_are_the_bounds(
    sketch: LengthSketch, index: int
) -> None:
    assume(sketch.tokens[0] > 0)  # otherwise the bound is conditioned on a length above 0
    bound = max(sketch.tokens[index], 1.0)
    assert sketch.upper(LENGTH_LEVELS[index]) == pytest.approx(bound)


def distribution(sketch: LengthSketch, length: float) -> float:
    """The probability of at most this length, by the class's definition."""
    points = [(0.0, 0.0), *zip(sketch.tokens, LENGTH_LEVELS, strict=True)]
    below = [point for point in points if point[0] <= length]
    above = [point for point in points if point[0] > length]
    if not above:
        return LENGTH_LEVELS[-1]
    (low_tokens, low), (high_tokens, high) = below[-1], above[0]
    return low + (length - low_tokens) / (high_tokens - low_tokens) * (high - low)


@law
@given(
    st.lists(st.integers(1, 900), min_size=7, max_size=7),
    st.floats(0.05, 0.95),
    st.integers(0, 3000),
)
def test_the_bound_is_the_conditional_quantile(
    gaps: list[int], level: float, generated: int
) -> None:
    """P(length <= bound | length > generated) = level, for bounds below the tail."""
    sketch = LengthSketch(tuple(float(sum(gaps[: index + 1])) for index in range(7)))
    reached = distribution(sketch, generated)
    bound = sketch.upper(level, generated=generated)
    assume(generated + 1 < bound < sketch.tokens[-1])
    conditional = (distribution(sketch, bound) - reached) / (1 - reached)
    assert conditional == pytest.approx(level)


@law
@given(
    st.lists(st.integers(1, 900), min_size=7, max_size=7),
    st.floats(0.05, 0.95),
    st.integers(0, 3000),
)
def test_the_tail_decays_at_the_rate_between_the_last_two_quantiles(
    gaps: list[int], level: float, beyond: int
) -> None:
    """A fifth of the lengths above the 0.95 quantile exceed the 0.99 quantile, and so on."""
    sketch = LengthSketch(tuple(float(sum(gaps[: index + 1])) for index in range(7)))
    generated = int(sketch.tokens[-1]) + beyond
    more = gaps[-1] * math.log(1 - level) / math.log(0.2)
    assert sketch.upper(level, generated=generated) == pytest.approx(generated + max(more, 1))


@law
@given(plausible, levels, st.integers(0, 1000))
def test_above_an_atom_the_bound_is_one_more_token(
    sketch: LengthSketch, level: float, beyond: int
) -> None:
    atom = LengthSketch((*sketch.tokens[:-2], sketch.tokens[-1], sketch.tokens[-1]))
    generated = int(atom.tokens[-1]) + beyond
    assert atom.upper(level, generated=generated) == generated + 1


@law
@given(st.integers(1, 900), st.floats(0.9901, 0.999), st.integers(0, 6))
def test_the_tail_begins_at_the_last_quantile(gap: int, level: float, generated: int) -> None:
    sketch = LengthSketch((7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 12.0 + gap))
    bound = sketch.upper(level, generated=generated)
    assert bound > sketch.upper(0.99, generated=generated)
    survival = 0.01 * 0.2 ** ((bound - sketch.tokens[-1]) / gap)
    reached = distribution(sketch, generated)
    assert survival == pytest.approx((1 - level) * (1 - reached))


@law
@given(sketches(), levels, st.integers(0, 2**53))
def test_a_bound_is_finite(sketch: LengthSketch, level: float, generated: int) -> None:
    assert math.isfinite(sketch.upper(level, generated=generated))


@law
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=200))
def test_the_sketch_of_samples_is_their_quantiles(lengths: list[int]) -> None:
    expected = np.quantile(lengths, LENGTH_LEVELS)
    assert LengthSketch.of(lengths).tokens == pytest.approx(tuple(expected))


@pytest.mark.parametrize("lengths", [[], [-1.0], [float("nan")], [1.0, float("inf")]])
def test_invalid_samples_are_refused(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match=r"length|quantile"):
        LengthSketch.of(lengths)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_level_outside_0_to_1_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        LengthSketch((1.0,) * 7).upper(level)


@pytest.mark.parametrize(
    "tokens",
    [(), (1.0,) * 6, (1.0,) * 8, (2.0,) + (1.0,) * 6, (-1.0,) + (1.0,) * 6, (float("nan"),) * 7],
)
def test_invalid_quantiles_are_refused(tokens: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="quantile"):
        LengthSketch(tokens)
