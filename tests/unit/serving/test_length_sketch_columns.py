"""upper_tokens: the same bounds as LengthSketch.upper, for many sketches at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.length_sketch_columns import upper_tokens
from tests.strategies import law, sketches

levels = st.sampled_from(LENGTH_LEVELS) | st.floats(0.001, 0.999)
NO_SKETCH = (np.nan,) * len(LENGTH_LEVELS)


def columns(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[object, int]]]:
    """A sketch or none, and the tokens generated: none, few, or more than predicted."""
    generated = st.just(0) | st.integers(0, 30) | st.integers(0, 5000)
    return st.lists(st.tuples(st.none() | sketches(values), generated), max_size=20)


def compare(rows: list[tuple[object, int]], level: float) -> None:
    quantiles = np.array(
        [each.tokens if isinstance(each, LengthSketch) else NO_SKETCH for each, _ in rows],
        dtype=np.float64,
    ).reshape(len(rows), len(LENGTH_LEVELS))
    generated = np.array([count for _, count in rows], dtype=np.int64)
    bounds = upper_tokens(quantiles, level, generated=generated)
    assert bounds.shape == (len(rows),)
    for (sketch, count), bound in zip(rows, bounds.tolist(), strict=True):
        if isinstance(sketch, LengthSketch):
            assert bound == pytest.approx(sketch.upper(level, generated=count), rel=1e-9)
        else:
            assert np.isnan(bound)


@law
@given(columns(st.integers(0, 4000).map(float)), levels)
def test_each_row_has_the_bound_of_its_sketch(rows: list[tuple[object, int]], level: float) -> None:
    compare(rows, level)


@law
@given(columns(st.floats(0, 1e12)), levels)
def test_each_row_has_the_bound_of_its_sketch_for_any_numbers_in_a_view(
    rows: list[tuple[object, int]], level: float
) -> None:
    compare(rows, level)


@pytest.mark.parametrize("tokens", [0.0, 1.0, 400.0])
@pytest.mark.parametrize("generated", [0, 1, 399, 400, 401])
def test_equal_quantiles_give_the_bound_of_the_sketch(tokens: float, generated: int) -> None:
    """All quantiles are equal: every interval has width 0, and there is no tail."""
    compare([(LengthSketch((tokens,) * len(LENGTH_LEVELS)), generated)], 0.9)
