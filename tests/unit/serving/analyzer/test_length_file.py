"""Files of length models: they round-trip, and damaged or crafted files are refused."""

import dataclasses
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.analyzer import model_file
from serving.analyzer.features import NUM_FEATURES, CallFeatures
from serving.analyzer.fitted import MIN_CALLS, FittedLengths, fit
from serving.analyzer.forest import MAX_DEPTH, ForestArrays
from serving.analyzer.history import StepHistory
from serving.errors import (
    CorruptModel,
    ModelNotSaved,
    ModelUnreadable,
    TooFewSamples,
    UnknownModelVersion,
)
from tests.strategies import examples
from tests.unit.serving.analyzer.length_examples import application, call

file_law = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
HEADER_BYTES = struct.calcsize("<8sHH6Id")


@pytest.fixture(scope="module")
def model() -> FittedLengths:
    return fit(application(MIN_CALLS), seed=0)


@pytest.fixture
def path(model: FittedLengths, tmp_path: Path) -> Path:
    path = tmp_path / "lengths"
    model.save(path)
    return path


def prediction(model: FittedLengths, features: CallFeatures) -> list[float]:
    return model.forest.quantiles(features.vector(StepHistory()), [0.1, 0.5, 0.9]).tolist()


def with_checksum(written: bytes) -> bytes:
    """The bytes with a right checksum, as in a forged file."""
    return written + blake3(written).digest()


def test_load_is_the_inverse_of_save(model: FittedLengths, path: Path) -> None:
    loaded = FittedLengths.load(path)
    for field in dataclasses.fields(ForestArrays):
        before, after = (getattr(each.forest.arrays, field.name) for each in (model, loaded))
        assert np.array_equal(before, after), field.name
    assert loaded.scores == model.scores
    assert (loaded.num_calls, loaded.trained_until_s) == (model.num_calls, model.trained_until_s)
    for features in (call("plan"), call("write", prompt_tokens=1500), call("never seen")):
        assert prediction(loaded, features) == prediction(model, features)


def test_the_same_calls_and_seed_give_the_same_file(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    fit(application(MIN_CALLS), seed=0).save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_a_model_of_two_thousand_calls_takes_a_few_hundred_kilobytes(tmp_path: Path) -> None:
    fit(application(2000), seed=0).save(tmp_path / "lengths")
    assert (tmp_path / "lengths").stat().st_size < 400_000


def test_too_few_calls_are_a_named_error() -> None:
    with pytest.raises(TooFewSamples) as refused:
        fit(application(MIN_CALLS - 1), seed=0)
    assert refused.value.args == (MIN_CALLS - 1, MIN_CALLS)


@file_law
@given(st.data())
def test_a_cut_file_is_refused(path: Path, data: st.DataObject) -> None:
    written = path.read_bytes()
    broken = path.with_name("cut")
    broken.write_bytes(written[: data.draw(st.integers(0, len(written) - 1))])
    with pytest.raises(CorruptModel):
        FittedLengths.load(broken)


@file_law
@given(st.data())
def test_a_flipped_bit_is_detected(path: Path, data: st.DataObject) -> None:
    written = bytearray(path.read_bytes())
    written[data.draw(st.integers(0, len(written) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    broken = path.with_name("flipped")
    broken.write_bytes(written)
    with pytest.raises((CorruptModel, UnknownModelVersion)):
        FittedLengths.load(broken)


@file_law
@given(st.data())
def test_a_forged_file_is_refused_or_predicts(path: Path, data: st.DataObject) -> None:
    """One byte is changed and the checksum corrected: a named error, or finite predictions."""
    written = path.read_bytes()[:-32]
    header, body = written[:HEADER_BYTES], zlib.decompress(written[HEADER_BYTES:])
    inflated = bytearray(header + body)
    inflated[data.draw(st.integers(8, len(inflated) - 1))] = data.draw(st.integers(0, 255))
    forged = bytes(inflated[:HEADER_BYTES]) + zlib.compress(bytes(inflated[HEADER_BYTES:]), 1)
    broken = path.with_name("forged")
    broken.write_bytes(with_checksum(forged))
    try:
        loaded = FittedLengths.load(broken)
    except (CorruptModel, UnknownModelVersion):
        return
    assert np.isfinite(prediction(loaded, call())).all()


def small(**changes: object) -> ForestArrays:
    """Two trees: a root with two leaves, and a single leaf; with some arrays replaced."""
    valid = ForestArrays(
        tree_sizes=np.array([3, 1]),
        features=np.array([0, -1, -1, -1]),
        thresholds=np.array([0.5, 0, 0, 0], np.float32),
        left=np.array([1, 0, 0, 0]),
        right=np.array([2, 0, 0, 0]),
        leaf_sizes=np.array([0, 1, 1, 1]),
        samples=np.array([0, 1, 1]),
        lengths=np.array([10, 20]),
        num_features=NUM_FEATURES,
    )
    assert valid.fault() is None
    values = {
        name: np.array(value, getattr(valid, name).dtype) if name != "num_features" else value
        for name, value in changes.items()
    }
    return dataclasses.replace(valid, **values)  # type: ignore[arg-type]


def document(
    arrays: ForestArrays, *, levels: Sequence[float] = (0.5,), trained_until_s: float = 0.0
) -> model_file.Document:
    """The contents of a file with this forest."""
    steps = np.zeros(len(levels), np.int64)
    return model_file.Document(arrays, steps, np.array(levels), 3, trained_until_s)


def chain(depth: int) -> ForestArrays:
    """One tree in which every right child above the last has children."""
    inner = [index % 2 == 0 and index < 2 * depth for index in range(2 * depth + 1)]
    leaves = [not each for each in inner]
    return small(
        tree_sizes=[len(inner)],
        features=[0 if each else -1 for each in inner],
        thresholds=[0.5] * len(inner),
        left=[int(each) for each in inner],
        right=[2 * each for each in inner],
        leaf_sizes=leaves,
        samples=[0] * sum(leaves),
    )


CRAFTED: dict[str, ForestArrays] = {
    "no tree": small(tree_sizes=[], features=[], thresholds=[], left=[], right=[], leaf_sizes=[]),
    "an empty tree": small(tree_sizes=[4, 0]),
    "trees larger than the nodes": small(tree_sizes=[2**31, 1]),
    "a node that is its own child": small(left=[0, 0, 0, 0]),
    "two parents": small(right=[1, 0, 0, 0]),
    "a child in another tree": small(right=[3, 0, 0, 0]),
    "a child in no tree": small(right=[2**31, 0, 0, 0]),
    "a leaf with children": small(left=[1, 1, 0, 0]),
    "a feature that no call has": small(features=[NUM_FEATURES, -1, -1, -1]),
    "a threshold that is no number": small(thresholds=[np.nan, 0, 0, 0]),
    "an empty leaf": small(leaf_sizes=[0, 0, 2, 1]),
    "a node with samples": small(leaf_sizes=[1, 1, 1, 0]),
    "leaves without samples": small(leaf_sizes=[0, 1, 1, 2**31]),
    "a sample without a length": small(samples=[0, 1, 2]),
    "lengths out of order": small(lengths=[20, 10]),
    "no length": small(lengths=[]),
    "a chain that is too long": chain(MAX_DEPTH + 1),
}


@pytest.mark.parametrize("arrays", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_forest_is_refused(arrays: ForestArrays, tmp_path: Path) -> None:
    path = tmp_path / "crafted"
    model_file.save(path, document(arrays))
    with pytest.raises(CorruptModel):
        FittedLengths.load(path)


@pytest.mark.parametrize("arrays", [small(), chain(MAX_DEPTH)], ids=["small", "deep"])
def test_the_smallest_and_the_deepest_forests_are_loaded(
    arrays: ForestArrays, tmp_path: Path
) -> None:
    model_file.save(tmp_path / "valid", document(arrays))
    assert prediction(FittedLengths.load(tmp_path / "valid"), call())[0] >= 10


@pytest.mark.parametrize(
    ("levels", "trained_until_s"), [([0.5, np.nan], 0.0), ([np.inf], 0.0), ([0.5], np.nan)]
)
def test_scores_and_times_that_are_not_finite_are_refused(
    levels: list[float], trained_until_s: float, tmp_path: Path
) -> None:
    crafted = document(small(), levels=levels, trained_until_s=trained_until_s)
    model_file.save(tmp_path / "crafted", crafted)
    with pytest.raises(CorruptModel):
        FittedLengths.load(tmp_path / "crafted")


def with_counts(written: bytes, *counts: int) -> bytes:
    return written[:12] + struct.pack("<6I", *counts) + written[36:-32]


@pytest.mark.parametrize(
    "forge",
    [
        lambda written: with_counts(written, *[2**32 - 1] * 6),
        lambda written: with_counts(written, 1, 2**19, 2**21, 1, 1, 1),
        lambda written: written[:HEADER_BYTES] + zlib.compress(bytes(1 << 26)),
        lambda written: written[:HEADER_BYTES] + b"not deflated",
        lambda written: written[:-32] + b"and more",
        lambda written: written[:10] + b"\xff\xff" + written[12:-32],
    ],
    ids=["counts", "sizes", "bomb", "not deflated", "more", "features of another version"],
)
def test_wrong_sizes_in_a_forged_file_are_refused(
    forge: Callable[[bytes], bytes], path: Path
) -> None:
    path.write_bytes(with_checksum(forge(path.read_bytes())))
    with pytest.raises(CorruptModel):
        FittedLengths.load(path)


def test_another_version_is_a_named_error(path: Path) -> None:
    written = path.read_bytes()
    path.write_bytes(written[:8] + b"\x02\x01" + written[10:])
    with pytest.raises(UnknownModelVersion) as refused:
        FittedLengths.load(path)
    assert refused.value.args == (str(path), 0x102, model_file.MODEL_VERSION)


def test_a_missing_file_and_a_folder_are_named_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelUnreadable):
            FittedLengths.load(path)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_former_model_unchanged(
    failing: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    former = path.read_bytes()
    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), full)
    with pytest.raises(ModelNotSaved, match="No space left"):
        fit(application(MIN_CALLS), seed=1).save(path)
    assert path.read_bytes() == former
    assert list(path.parent.iterdir()) == [path], "a partial file was left behind"


def test_a_missing_folder_is_a_named_error(model: FittedLengths, tmp_path: Path) -> None:
    with pytest.raises(ModelNotSaved):
        model.save(tmp_path / "nowhere" / "lengths")
