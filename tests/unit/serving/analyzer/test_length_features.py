"""CallFeatures: a short encoding without text, and the same vector live and recorded."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analyzer.features import (
    FEATURE_NAMES,
    FEATURES_VERSION,
    NUM_FEATURES,
    CallFeatures,
)
from serving.analyzer.history import StepHistory
from serving.analyzer.words import (
    MAX_CHARACTERS,
    NUM_WORD_BUCKETS,
    count_words,
    estimate_prompt_tokens,
)
from serving.errors import CorruptFeatures, UnknownFeaturesVersion
from tests.strategies import law
from tests.unit.serving.analyzer.length_examples import call

counts = st.integers(0, 5000) | st.integers(0, 2**53)
any_text = st.text() | st.text("ab \n.é漢", max_size=200)
calls = st.builds(
    CallFeatures,
    identity=st.text(max_size=20),
    prompt_tokens=counts,
    max_tokens=st.none() | counts,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    structured=st.booleans(),
    stage=counts,
    position=counts,
    previous_tokens=counts,
    run_mean_tokens=st.floats(0, 1e6),
    words=st.binary(min_size=NUM_WORD_BUCKETS, max_size=NUM_WORD_BUCKETS),
)


@law
@given(calls)
def test_decode_is_the_inverse_of_encode(features: CallFeatures) -> None:
    assert CallFeatures.decode(features.identity, features.encode()) == features


@law
@given(calls)
def test_a_recorded_call_has_the_vector_of_the_live_one(features: CallFeatures) -> None:
    history = StepHistory()
    recorded = CallFeatures.decode(features.identity, features.encode())
    assert np.array_equal(recorded.vector(history), features.vector(history))


@law
@given(calls)
def test_a_vector_is_finite_and_has_every_feature(features: CallFeatures) -> None:
    vector = features.vector(StepHistory())
    assert vector.shape == (NUM_FEATURES,) == (len(FEATURE_NAMES),)
    assert np.isfinite(vector).all()


def test_an_ordinary_call_takes_less_than_64_bytes() -> None:
    features = call(
        prompt_tokens=100_000,
        max_tokens=8192,
        stage=12,
        position=300,
        previous_tokens=4000,
        run_mean_tokens=1234.5,
        words=bytes([255] * NUM_WORD_BUCKETS),
    )
    assert len(features.encode()) < 64


@law
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_decoded_or_a_named_error(document: bytes) -> None:
    try:
        CallFeatures.decode("model:step", document)
    except (CorruptFeatures, UnknownFeaturesVersion):
        return


@law
@given(calls, st.data())
def test_a_cut_or_extended_document_is_corrupt(features: CallFeatures, data: st.DataObject) -> None:
    document = features.encode()
    kept = data.draw(st.integers(0, len(document) - 1))
    for broken in (document[:kept], document + b"\0"):
        with pytest.raises(CorruptFeatures):
            CallFeatures.decode("", broken)


@pytest.mark.parametrize(
    "document", [bytes([2]) + call().encode()[1:], b"\xff", bytes([0]) * 30], ids=repr
)
def test_another_version_is_a_named_error(document: bytes) -> None:
    with pytest.raises(UnknownFeaturesVersion):
        CallFeatures.decode("", document)


@pytest.mark.parametrize(
    "broken",
    [
        call().encode()[:1] + b"\xf0" + call().encode()[2:],  # unknown flags
        call().encode()[:-1] + b"\xff" * 9 + b"\x01",  # a number without end
        call().encode()[:-1] + b"\xff" * 8 + b"\x01",  # a number beyond 2**53
    ],
)
def test_impossible_values_are_corrupt(broken: bytes) -> None:
    with pytest.raises(CorruptFeatures):
        CallFeatures.decode("", broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": -1},
        {"temperature": math.nan},
        {"top_p": math.inf},
        {"run_mean_tokens": -0.5},
        {"max_tokens": -1},
        {"stage": 2**54},
        {"words": b""},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_values_that_no_call_can_have_are_refused(changes: dict[str, object]) -> None:
    [name] = changes
    with pytest.raises(ValueError, match=name):
        call(**changes)  # type: ignore[arg-type]


@law
@given(any_text)
def test_words_are_counted_in_any_text(text: str) -> None:
    assert len(count_words(text)) == NUM_WORD_BUCKETS


@law
@given(st.lists(st.text("abcdeXYZé", min_size=1, max_size=8), max_size=30), st.data())
def test_word_counts_ignore_order_case_and_punctuation(
    words: list[str], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(words))
    ascii_upper = [word.translate(str.maketrans("abcde", "ABCDE")) for word in shuffled]
    assert count_words(" ".join(words)) == count_words("?! ".join(ascii_upper))


@law
@given(st.text("ab ", max_size=60), st.integers(1, 5))
def test_repeated_text_never_has_lower_counts(text: str, repeated: int) -> None:
    once, often = count_words(text), count_words(" ".join([text] * repeated))
    assert all(left <= right for left, right in zip(once, often, strict=True))


@pytest.mark.usefixtures("subprocesses")
def test_word_counts_are_the_same_in_every_process() -> None:
    text = "Summarise the sources; cite each of them. ÄÖ 漢字"
    script = f"from serving.analyzer.words import count_words; print(count_words({text!r}).hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {count_words(text).hex()}


def test_text_that_cannot_be_encoded_has_features_too() -> None:
    """Half of a surrogate pair is valid in JSON but not in UTF-8."""
    broken = "a \ud800 b"
    assert sum(count_words(broken)) > 0
    assert estimate_prompt_tokens(broken) == 2
    assert np.isfinite(call(broken).vector(StepHistory())).all()


def test_word_buckets_do_not_change_without_a_new_version() -> None:
    """A changed hash would invalidate recorded calls: it needs a new FEATURES_VERSION."""
    assert FEATURES_VERSION == 1
    assert count_words("a b a").hex() == "00000000001000000019000000000000"


def test_both_ends_of_a_long_prompt_are_counted() -> None:
    middle = "x " * MAX_CHARACTERS
    plain = count_words(middle)
    others = "a number of other words"
    assert count_words(f"{others} {middle}") != plain
    assert count_words(f"{middle} {others}") != plain
    assert count_words(f"{middle} hidden {middle}") == count_words(f"{middle} another {middle}")


@law
@given(any_text, any_text)
def test_a_longer_text_has_no_fewer_tokens(text: str, more: str) -> None:
    assert estimate_prompt_tokens(text) <= estimate_prompt_tokens(text + more)
    assert (estimate_prompt_tokens(text) == 0) == (not text)
