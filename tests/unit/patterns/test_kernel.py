"""Similarity is symmetric, 1 for equals, and never outside [0, 1]."""

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    CorruptKernel,
    InvalidBandwidth,
    ShapeMismatch,
    Stage,
    StageKernel,
    distances,
    gaussian_kernel,
    similarities,
    tabulate,
)
from patterns.features import ATTRIBUTES
from patterns.kernel import KERNEL_VERSION
from tests.unit.patterns.pattern_strategies import chain, law, many_runs

Run = tuple[Stage, ...]

bandwidths = st.floats(0.0, exclude_min=True, allow_nan=False, allow_infinity=True)
coordinates = st.floats(-1e6, 1e6)
no_bandwidths = pytest.mark.parametrize("wrong", [0.0, -1.0, -math.inf, math.nan])


def vectors(dimensions: int) -> st.SearchStrategy[Any]:
    row = st.lists(coordinates, min_size=dimensions, max_size=dimensions)
    return st.lists(row, min_size=1, max_size=4).map(np.array)


@law
@given(vectors(3), vectors(3), bandwidths)
def test_the_gaussian_kernel_is_symmetric_and_a_share_of_1(
    left: Any, right: Any, bandwidth: float
) -> None:
    similarity = gaussian_kernel(left, right, bandwidth=bandwidth)
    assert similarity.shape == (len(left), len(right))
    assert (similarity == gaussian_kernel(right, left, bandwidth=bandwidth).T).all()
    assert ((similarity >= 0.0) & (similarity <= 1.0)).all()
    assert (np.diag(gaussian_kernel(left, left, bandwidth=bandwidth)) == 1.0).all()


def test_at_a_distance_of_one_bandwidth_similarity_is_exp_of_minus_a_half() -> None:
    similarity = gaussian_kernel(np.zeros((1, 2)), np.array([[3.0, 4.0]]), bandwidth=5.0)
    assert similarity[0, 0] == pytest.approx(math.exp(-0.5))


def test_the_narrowest_bandwidth_tells_apart_and_the_widest_tells_nothing() -> None:
    one, other = np.array([[1.0]]), np.array([[2.0]])
    assert gaussian_kernel(one, other, bandwidth=5e-324) == 0.0
    assert gaussian_kernel(one, one, bandwidth=5e-324) == 1.0
    assert gaussian_kernel(one, other, bandwidth=math.inf) == 1.0


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 1), ()])
def test_vectors_of_other_lengths_are_not_compared(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\)"):
        gaussian_kernel(np.zeros((2, 3)), np.zeros(shape), bandwidth=1.0)


@no_bandwidths
def test_a_bandwidth_that_is_not_above_0_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidBandwidth):
        gaussian_kernel(np.zeros((1, 1)), np.zeros((1, 1)), bandwidth=wrong)
    for place, name in enumerate(ATTRIBUTES):
        widths = [1.0] * len(ATTRIBUTES)
        widths[place] = wrong
        with pytest.raises(InvalidBandwidth, match=name):
            StageKernel(tuple(widths))


@pytest.mark.parametrize("widths", [(), (1.0,), (1.0,) * 4])
def test_a_kernel_has_a_bandwidth_for_each_attribute(widths: tuple[float, ...]) -> None:
    with pytest.raises(InvalidBandwidth):
        StageKernel(widths)


@law
@given(st.tuples(bandwidths, bandwidths, bandwidths))
def test_a_kernel_comes_back_from_json_as_it_was(widths: tuple[float, ...]) -> None:
    kernel = StageKernel(widths)
    text = json.dumps(kernel.to_document(), allow_nan=False)
    assert StageKernel.from_document(json.loads(text)) == kernel


def test_infinity_is_written_as_nothing() -> None:
    document = StageKernel((1.0, math.inf, 2.0)).to_document()
    assert document["bandwidths"] == {
        "output_tokens": 1.0,
        "tool_seconds": None,
        "input_tokens": 2.0,
    }


SOUND = StageKernel().to_document()


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        None,
        [],
        "kernel",
        7,
        SOUND["bandwidths"],
        {**SOUND, "version": KERNEL_VERSION + 1},
        {**SOUND, "version": None},
        {**SOUND, "bandwidths": None},
        {**SOUND, "bandwidths": [1.0, 1.0, 1.0]},
        {**SOUND, "bandwidths": {}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": 0}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": -1}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": math.nan}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": "wide"}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": [1]}},
        {**SOUND, "bandwidths": {**SOUND["bandwidths"], "input_tokens": 10**400}},
    ],
    ids=lambda garbage: repr(garbage)[-60:],
)
def test_what_is_no_kernel_document_is_a_corrupt_kernel(garbage: Any) -> None:
    with pytest.raises(CorruptKernel):
        StageKernel.from_document(garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@law
@given(st.fixed_dictionaries({"version": st.just(1), "bandwidths": json_values}) | json_values)
def test_any_json_is_a_kernel_or_a_corrupt_kernel(document: Any) -> None:
    with contextlib.suppress(CorruptKernel):
        assert StageKernel.from_document(document).bandwidths


@law
@given(st.lists(json_values, min_size=3, max_size=3))
def test_any_values_of_bandwidths_are_a_kernel_or_a_corrupt_kernel(values: list[Any]) -> None:
    widths = dict(zip(ATTRIBUTES, values, strict=True))
    try:
        kernel = StageKernel.from_document({"version": KERNEL_VERSION, "bandwidths": widths})
    except CorruptKernel:
        return
    assert all(width > 0.0 for width in kernel.bandwidths)


@law
@given(many_runs, st.tuples(bandwidths, bandwidths, bandwidths))
def test_whole_patterns_are_alike_symmetrically_and_each_like_itself(
    past: list[Run], widths: tuple[float, ...]
) -> None:
    kernel, table = StageKernel(widths), tabulate([*past, *past])
    alike = similarities(table, kernel)
    assert alike.shape == (2 * len(past), 2 * len(past))
    assert (alike == alike.T).all()
    assert ((alike >= 0.0) & (alike <= 1.0)).all()
    assert (np.diag(alike) == 1.0).all()
    assert (np.diag(alike[: len(past), len(past) :]) == 1.0).all()
    apart = distances(table, kernel)
    assert (apart == apart.T).all()
    assert ((apart >= 0.0) & (apart <= math.sqrt(2.0))).all()
    assert (np.diag(apart) == 0.0).all()


def test_patterns_that_call_otherwise_are_not_alike_at_all() -> None:
    table = tabulate([chain(("plan", 1, 1.0)), chain(("act", 1, 1.0))])
    assert similarities(table, StageKernel())[0, 1] == 0.0


def test_what_the_longer_pattern_has_beyond_lowers_similarity_in_proportion() -> None:
    short = chain(("plan", 5, 1.0), ("act", 5, 1.0))
    long = (*short, *chain(*(("plan", 5, 1.0),) * 5)[2:])
    assert similarities(tabulate([short, long]), StageKernel())[0, 1] == pytest.approx(2 / 5)


def test_no_patterns_have_no_similarities() -> None:
    assert similarities(tabulate([]), StageKernel()).shape == (0, 0)
    assert distances(tabulate([]), StageKernel()).shape == (0, 0)


@law
@given(many_runs, st.floats(0.01, 100.0), st.floats(1.0, 100.0))
def test_a_wider_bandwidth_never_makes_patterns_less_alike(
    past: list[Run], width: float, factor: float
) -> None:
    table = tabulate(past)
    narrow = similarities(table, StageKernel((width,) * 3))
    wide = similarities(table, StageKernel((width * factor,) * 3))
    assert (wide >= narrow - 1e-12).all()
