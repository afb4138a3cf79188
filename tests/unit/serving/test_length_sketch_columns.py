"""upper_tokens: LengthSketch.upper for thousands of sketches at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch, upper_tokens
from tests.strategies import law, sketches

levels = st.sampled_from(LENGTH_LEVELS) | st.floats(0.001, 0.999)
NOTHING_KNOWN = (np.nan,) * len(LENGTH_LEVELS)


def columns(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[object, int]]]:
    """A sketch or none, and what has been generated: nothing, little, or more than foretold."""
    generated = st.just(0) | st.integers(0, 30) | st.integers(0, 5000)
    return st.lists(st.tuples(st.none() | sketches(values), generated), max_size=20)


def compare(rows: list[tuple[object, int]], level: float) -> None:
    quantiles = np.array(
        [each.tokens if isinstance(each, LengthSketch) else NOTHING_KNOWN for each, _ in rows],
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
def test_every_column_is_bound_as_its_sketch_is(
    rows: list[tuple[object, int]], level: float
) -> None:
    compare(rows, level)


@law
@given(columns(st.floats(0, 1e12)), levels)
def test_and_for_any_numbers_that_a_view_may_show(
    rows: list[tuple[object, int]], level: float
) -> None:
    compare(rows, level)


@pytest.mark.parametrize("tokens", [0.0, 1.0, 400.0])
@pytest.mark.parametrize("generated", [0, 1, 399, 400, 401])
def test_an_answer_of_one_certain_length_is_bound_alike(tokens: float, generated: int) -> None:
    """All quantiles are equal: no width anywhere, and no tail."""
    compare([(LengthSketch((tokens,) * len(LENGTH_LEVELS)), generated)], 0.9)
