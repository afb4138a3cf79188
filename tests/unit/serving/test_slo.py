"""The wire form of SLOs: it round-trips, and an error names each malformed tag."""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidSlo
from serving.length_sketch import LENGTH_LEVELS
from serving.slo import (
    BEST_EFFORT,
    FutureWork,
    OnLate,
    Slo,
    SloKind,
    from_tags,
    patience_s,
    to_tags,
)
from tests.strategies import law, slos

FLAT = (str, int, float)


@law
@given(slos(parts=True))
def test_every_slo_survives_the_wire(slo: Slo) -> None:
    assert from_tags(to_tags(slo)) == slo


@law
@given(slos(parts=True))
def test_every_slo_survives_json_text(slo: Slo) -> None:
    text = json.dumps(to_tags(slo), allow_nan=False)
    assert from_tags(json.loads(text)) == slo


@law
@given(slos(parts=True))
def test_the_wire_form_is_flat_because_vllm_refuses_nested_values(slo: Slo) -> None:
    for key, value in to_tags(slo).items():
        assert key.startswith("slo_")
        parts = value if isinstance(value, list) else [value]
        assert all(type(part) in FLAT for part in parts), key


def test_serial_tokens_may_be_left_out_of_a_future() -> None:
    tags = {"slo_future": [1.0, 2.0, 3.0, 4.0, 5.0]}
    future = from_tags(tags).future
    assert future == FutureWork(1.0, 2.0, 3.0, 4.0, 5.0)
    assert to_tags(Slo(future=future)) == tags


@pytest.mark.parametrize("index", range(5))
def test_every_other_part_of_a_future_must_be_finite(index: int) -> None:
    parts = [1.0] * 6
    parts[index] = math.inf
    with pytest.raises(InvalidSlo, match="slo_future"):
        from_tags(to_tags(Slo(future=FutureWork(*parts))))


def test_the_default_slo_has_no_tags() -> None:
    assert to_tags(BEST_EFFORT) == {}
    assert from_tags({}) is BEST_EFFORT
    assert from_tags(None) is BEST_EFFORT


def test_keys_without_the_prefix_are_ignored() -> None:
    assert from_tags({"kv_transfer_params": {"a": 1}, "priority": object()}) is BEST_EFFORT
    assert from_tags({5: 1, ("a", "b"): 2}) == BEST_EFFORT  # type: ignore[dict-item]


def test_the_default_waiting_limit_of_a_latency_request_is_five_seconds() -> None:
    assert from_tags({"slo_kind": "latency"}).waiting_s == 5.0
    assert from_tags({"slo_kind": "latency", "slo_waiting_s": 1}).waiting_s == 1.0
    assert from_tags({"slo_kind": "deadline", "slo_deadline_s": 1}).waiting_s is None


DEADLINE = {"slo_kind": "deadline", "slo_deadline_s": 10.0}
ASCENDING = [float(level) for level in range(len(LENGTH_LEVELS))]
MALFORMED = [
    ("slo_kind", "urgent"),
    ("slo_kind", 3),
    ("slo_kind", None),
    ("slo_deadline_s", "soon"),
    ("slo_deadline_s", 0),
    ("slo_deadline_s", -1.0),
    ("slo_deadline_s", math.inf),
    ("slo_deadline_s", math.nan),
    ("slo_deadline_s", True),
    ("slo_deadline_s", 10**400),
    ("slo_deadline_s", [1.0]),
    ("slo_ttft_s", 0.0),
    ("slo_ttft_s", "5"),
    ("slo_tbt_s", -0.2),
    ("slo_tbt_s", {}),
    ("slo_waiting_s", 0),
    ("slo_waiting_s", math.nan),
    ("slo_on_late", "explode"),
    ("slo_on_late", 1),
    ("slo_program", 7),
    ("slo_program", "p" * 257),
    ("slo_program", "half of a pair: \ud800"),
    ("slo_stage", -1),
    ("slo_stage", 0.5),
    ("slo_stage", math.inf),
    ("slo_stage", math.nan),
    ("slo_stage", 10**400),
    ("slo_final_s", 0),
    ("slo_final_s", "never"),
    ("slo_length_q", ASCENDING[:-1]),
    ("slo_length_q", [*ASCENDING, 9.0]),
    ("slo_length_q", ASCENDING[::-1]),
    ("slo_length_q", [-1.0, *ASCENDING[1:]]),
    ("slo_length_q", [*ASCENDING[:-1], math.inf]),
    ("slo_length_q", [*ASCENDING[:-1], "9"]),
    ("slo_length_q", [*ASCENDING[:-1], 10**400]),
    ("slo_length_q", "1234567"),
    ("slo_length_q", 5.0),
    ("slo_then_token", -1),
    ("slo_then_token", 0.5),
    ("slo_then_tbt_s", 0),
    ("slo_then_tbt_s", "slow"),
    ("slo_then_token", 8),
    ("slo_then_length_q", ASCENDING[:-1]),
    ("slo_then_length_q", ASCENDING),
    ("slo_stage_calls", 0),
    ("slo_stage_calls", 1.5),
    ("slo_future", [1.0, 2.0]),
    ("slo_future", [1.0, 2.0, 3.0, 4.0]),
    ("slo_future", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    ("slo_future", [1.0, 2.0, 3.0, 4.0, 5.0, math.inf]),
    ("slo_future", [1.0, 2.0, 3.0, 4.0, -5.0]),
    ("slo_future", [1.0, 2.0, 3.0, 4.0, math.nan]),
    ("slo_weight", 0.0),
    ("slo_weight", -1),
    ("slo_weight", False),
    ("slo_user", ["me"]),
    ("slo_user", "u" * 100_000),
    ("slo_user", "\udfff"),
    ("slo_deadlines", 5.0),
    ("slo_", 5.0),
]


@pytest.mark.parametrize(("key", "value"), MALFORMED, ids=lambda part: repr(part)[:30])
def test_a_malformed_tag_is_an_error_that_names_it(key: str, value: object) -> None:
    with pytest.raises(InvalidSlo) as caught:
        from_tags({**DEADLINE, key: value})
    assert caught.value.args[0] == key
    assert str(caught.value).startswith(f"{key}=")
    assert len(str(caught.value)) < 1000


def test_no_stage_may_end_later_than_its_run() -> None:
    with pytest.raises(InvalidSlo, match="later than slo_final_s"):
        from_tags({"slo_kind": "compound", "slo_deadline_s": 5.0, "slo_final_s": 4.9})
    assert from_tags({"slo_kind": "compound", "slo_deadline_s": 5.0, "slo_final_s": 5.0})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=3),
)
KEYS = sorted({key for key, _ in MALFORMED})


@law
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(), JSON))
def test_any_tags_give_an_slo_or_invalid_slo(tags: dict[str, object]) -> None:
    with suppress(InvalidSlo):
        slo = from_tags(tags)
        assert from_tags(to_tags(slo)) == slo


@pytest.mark.parametrize("kind", [SloKind.DEADLINE, SloKind.COMPOUND])
def test_a_missing_deadline_is_an_error_that_names_the_tag(kind: SloKind) -> None:
    with pytest.raises(InvalidSlo, match=r"slo_deadline_s.*needs a deadline"):
        from_tags({"slo_kind": kind.value})


@pytest.mark.parametrize("kind", [SloKind.LATENCY, SloKind.BEST_EFFORT])
def test_a_deadline_is_never_silently_ignored(kind: SloKind) -> None:
    with pytest.raises(InvalidSlo, match="slo_deadline_s"):
        from_tags({"slo_kind": kind.value, "slo_deadline_s": 3.0})
    with pytest.raises(InvalidSlo, match="slo_final_s"):
        from_tags({"slo_kind": kind.value, "slo_final_s": 3.0})


def test_a_deadline_without_a_kind_implies_it() -> None:
    assert from_tags({"slo_deadline_s": 3.0}).kind is SloKind.DEADLINE
    assert from_tags({"slo_deadline_s": 3.0, "slo_program": "p"}).kind is SloKind.COMPOUND
    assert from_tags({"slo_program": "p"}).kind is SloKind.BEST_EFFORT


@pytest.mark.parametrize(
    ("slo", "expected_s"),
    [
        (Slo(), math.inf),
        (Slo(waiting_s=3.0), 3.0),
        (Slo(kind=SloKind.LATENCY), 5.0),
        (Slo(kind=SloKind.DEADLINE, deadline_s=2.0), math.inf),
        (Slo(kind=SloKind.DEADLINE, deadline_s=2.0, on_late=OnLate.DROP), 2.0),
        (Slo(kind=SloKind.DEADLINE, deadline_s=2.0, waiting_s=1.0, on_late=OnLate.DROP), 1.0),
        (
            Slo(kind=SloKind.COMPOUND, deadline_s=2.0, final_s=9.0, on_late=OnLate.DROP),
            9.0,
        ),
    ],
)
def test_a_request_without_service_is_dropped_after_its_patience(
    slo: Slo, expected_s: float
) -> None:
    assert patience_s(slo) == expected_s
