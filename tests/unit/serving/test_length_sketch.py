"""LengthSketch: an honest bound that follows what has been generated."""

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
TOLERANCE = 1e-6  # of a token: what rounding may cost


@law
@given(plausible, levels, levels, generated_counts)
def test_a_safer_level_never_gives_a_lower_bound(
    sketch: LengthSketch, one: float, other: float, generated: int
) -> None:
    low, high = sorted((one, other))
    lower = sketch.upper(low, generated=generated)
    assert lower <= sketch.upper(high, generated=generated) + TOLERANCE


@law
@given(sketches(), levels, generated_counts)
def test_at_least_one_token_is_still_to_come(
    sketch: LengthSketch, level: float, generated: int
) -> None:
    assert sketch.upper(level, generated=generated) >= generated + 1


@law
@given(plausible, levels, generated_counts, generated_counts)
def test_a_longer_answer_is_never_expected_to_end_sooner(
    sketch: LengthSketch, level: float, one: int, other: int
) -> None:
    less, more = sorted((one, other))
    earlier = sketch.upper(level, generated=less)
    assert earlier <= sketch.upper(level, generated=more) + TOLERANCE


@law
@given(plausible, st.sampled_from(range(len(LENGTH_LEVELS) - 1)))
def test_before_anything_is_generated_the_quantiles_are_the_bounds(
    sketch: LengthSketch, index: int
) -> None:
    assume(sketch.tokens[0] > 0)  # else some answers have ended before they began
    bound = max(sketch.tokens[index], 1.0)
    assert sketch.upper(LENGTH_LEVELS[index]) == pytest.approx(bound)


def distribution(sketch: LengthSketch, length: float) -> float:
    """The probability of at most this length, by the definition in the class."""
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
    """P(length <= bound | length > generated) is the level, where the sketch knows the tail."""
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
def test_beyond_the_last_quantile_the_tail_decays_as_it_did_before_it(
    gaps: list[int], level: float, beyond: int
) -> None:
    """A fifth of what exceeds the 0.95 quantile exceeds the 0.99 quantile, and so on."""
    sketch = LengthSketch(tuple(float(sum(gaps[: index + 1])) for index in range(7)))
    generated = int(sketch.tokens[-1]) + beyond
    more = gaps[-1] * math.log(1 - level) / math.log(0.2)
    assert sketch.upper(level, generated=generated) == pytest.approx(generated + max(more, 1))


@law
@given(plausible, levels, st.integers(0, 1000))
def test_beyond_an_atom_only_the_next_token_is_certain(
    sketch: LengthSketch, level: float, beyond: int
) -> None:
    atom = LengthSketch((*sketch.tokens[:-2], sketch.tokens[-1], sketch.tokens[-1]))
    generated = int(atom.tokens[-1]) + beyond
    assert atom.upper(level, generated=generated) == generated + 1


@law
@given(st.integers(1, 900), st.floats(0.9901, 0.999), st.integers(0, 6))
def test_the_tail_begins_where_the_last_quantile_is(gap: int, level: float, generated: int) -> None:
    sketch = LengthSketch((7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 12.0 + gap))
    bound = sketch.upper(level, generated=generated)
    assert bound > sketch.upper(0.99, generated=generated)
    survival = 0.01 * 0.2 ** ((bound - sketch.tokens[-1]) / gap)
    reached = distribution(sketch, generated)
    assert survival == pytest.approx((1 - level) * (1 - reached))


@law
@given(sketches(), levels, st.integers(0, 2**53))
def test_a_bound_is_a_finite_number(sketch: LengthSketch, level: float, generated: int) -> None:
    assert math.isfinite(sketch.upper(level, generated=generated))


@law
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=200))
def test_the_sketch_of_samples_is_their_quantiles(lengths: list[int]) -> None:
    expected = np.quantile(lengths, LENGTH_LEVELS)
    assert LengthSketch.of(lengths).tokens == pytest.approx(tuple(expected))


@pytest.mark.parametrize("lengths", [[], [-1.0], [float("nan")], [1.0, float("inf")]])
def test_what_is_no_sample_has_no_sketch(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match=r"length|quantile"):
        LengthSketch.of(lengths)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_certainty_is_no_level(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        LengthSketch((1.0,) * 7).upper(level)


@pytest.mark.parametrize(
    "tokens",
    [(), (1.0,) * 6, (1.0,) * 8, (2.0,) + (1.0,) * 6, (-1.0,) + (1.0,) * 6, (float("nan"),) * 7],
)
def test_what_is_no_distribution_is_no_sketch(tokens: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="quantile"):
        LengthSketch(tokens)
