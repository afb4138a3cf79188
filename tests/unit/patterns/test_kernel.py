"""Similarity is symmetric, 1 for equal patterns, and always in [0, 1]."""

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
invalid_bandwidths = pytest.mark.parametrize("wrong", [0.0, -1.0, -math.inf, math.nan])


def vectors(dimensions: int) -> st.SearchStrategy[Any]:
    row = st.lists(coordinates, min_size=dimensions, max_size=dimensions)
    return st.lists(row, min_size=1, max_size=4).map(np.array)


@law
@given(vectors(3), vectors(3), bandwidths)
def test_the_gaussian_kernel_is_symmetric_and_in_0_to_1(
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


def test_similarity_is_0_with_the_smallest_bandwidth_and_1_with_an_infinite_one() -> None:
    one, other = np.array([[1.0]]), np.array([[2.0]])
    assert gaussian_kernel(one, other, bandwidth=5e-324) == 0.0
    assert gaussian_kernel(one, one, bandwidth=5e-324) == 1.0
    assert gaussian_kernel(one, other, bandwidth=math.inf) == 1.0


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 1), ()])
def test_vectors_of_different_lengths_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\)"):
        gaussian_kernel(np.zeros((2, 3)), np.zeros(shape), bandwidth=1.0)


@invalid_bandwidths
def test_a_bandwidth_that_is_not_above_0_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidBandwidth):
        gaussian_kernel(np.zeros((1, 1)), np.zeros((1, 1)), bandwidth=wrong)
    for index, name in enumerate(ATTRIBUTES):
        widths = [1.0] * len(ATTRIBUTES)
        widths[index] = wrong
        with pytest.raises(InvalidBandwidth, match=name):
            StageKernel(tuple(widths))


@pytest.mark.parametrize("widths", [(), (1.0,), (1.0,) * 4])
def test_a_kernel_with_a_wrong_number_of_bandwidths_is_refused(widths: tuple[float, ...]) -> None:
    with pytest.raises(InvalidBandwidth):
        StageKernel(widths)


@law
@given(st.tuples(bandwidths, bandwidths, bandwidths))
def test_a_kernel_is_read_from_json_as_it_was_written(widths: tuple[float, ...]) -> None:
    kernel = StageKernel(widths)
    text = json.dumps(kernel.to_document(), allow_nan=False)
    assert StageKernel.from_document(json.loads(text)) == kernel


def test_an_infinite_bandwidth_is_written_as_null() -> None:
    document = StageKernel((1.0, math.inf, 2.0)).to_document()
    assert document["bandwidths"] == {
        "output_tokens": 1.0,
        "tool_seconds": None,
        "input_tokens": 2.0,
    }


VALID = StageKernel().to_document()


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        None,
        [],
        "kernel",
        7,
        VALID["bandwidths"],
        {**VALID, "version": KERNEL_VERSION + 1},
        {**VALID, "version": None},
        {**VALID, "bandwidths": None},
        {**VALID, "bandwidths": [1.0, 1.0, 1.0]},
        {**VALID, "bandwidths": {}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": 0}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": -1}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": math.nan}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": "wide"}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": [1]}},
        {**VALID, "bandwidths": {**VALID["bandwidths"], "input_tokens": 10**400}},
    ],
    ids=lambda garbage: repr(garbage)[-60:],
)
def test_an_invalid_kernel_document_is_refused(garbage: Any) -> None:
    with pytest.raises(CorruptKernel):
        StageKernel.from_document(garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@law
@given(st.fixed_dictionaries({"version": st.just(1), "bandwidths": json_values}) | json_values)
def test_any_json_is_a_kernel_or_refused(document: Any) -> None:
    with contextlib.suppress(CorruptKernel):
        assert StageKernel.from_document(document).bandwidths


@law
@given(st.lists(json_values, min_size=3, max_size=3))
def test_any_json_values_as_bandwidths_are_a_kernel_or_refused(values: list[Any]) -> None:
    widths = dict(zip(ATTRIBUTES, values, strict=True))
    try:
        kernel = StageKernel.from_document({"version": KERNEL_VERSION, "bandwidths": widths})
    except CorruptKernel:
        return
    assert all(width > 0.0 for width in kernel.bandwidths)


@law
@given(many_runs, st.tuples(bandwidths, bandwidths, bandwidths))
def test_similarities_of_patterns_are_symmetric_and_1_for_equal_patterns(
    past: list[Run], widths: tuple[float, ...]
) -> None:
    kernel, table = StageKernel(widths), tabulate([*past, *past])
    similarity = similarities(table, kernel)
    assert similarity.shape == (2 * len(past), 2 * len(past))
    assert (similarity == similarity.T).all()
    assert ((similarity >= 0.0) & (similarity <= 1.0)).all()
    assert (np.diag(similarity) == 1.0).all()
    assert (np.diag(similarity[: len(past), len(past) :]) == 1.0).all()
    distance_matrix = distances(table, kernel)
    assert (distance_matrix == distance_matrix.T).all()
    assert ((distance_matrix >= 0.0) & (distance_matrix <= math.sqrt(2.0))).all()
    assert (np.diag(distance_matrix) == 0.0).all()


def test_the_similarity_of_patterns_with_different_calls_is_0() -> None:
    table = tabulate([chain(("plan", 1, 1.0)), chain(("act", 1, 1.0))])
    assert similarities(table, StageKernel())[0, 1] == 0.0


def test_the_similarity_of_a_run_that_was_cut_off_and_a_whole_one_is_0() -> None:
    run = chain(("plan", 1, 1.0))
    similarity = similarities(tabulate([run] * 3, is_cut_off=[True, True, False]), StageKernel())
    assert similarity.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_similarity_is_proportional_to_the_shared_part_of_the_longer_pattern() -> None:
    short = chain(("plan", 5, 1.0), ("act", 5, 1.0))
    long = (*short, *chain(*(("plan", 5, 1.0),) * 5)[2:])
    assert similarities(tabulate([short, long]), StageKernel())[0, 1] == pytest.approx(2 / 5)


def test_the_similarities_of_no_patterns_are_an_empty_array() -> None:
    assert similarities(tabulate([]), StageKernel()).shape == (0, 0)
    assert distances(tabulate([]), StageKernel()).shape == (0, 0)


@law
@given(many_runs, st.floats(0.01, 100.0), st.floats(1.0, 100.0))
def test_a_wider_bandwidth_never_lowers_similarity(
    past: list[Run], width: float, factor: float
) -> None:
    table = tabulate(past)
    narrow = similarities(table, StageKernel((width,) * 3))
    wide = similarities(table, StageKernel((width * factor,) * 3))
    assert (wide >= narrow - 1e-12).all()
