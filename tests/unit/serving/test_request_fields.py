"""The promise of a request as fields of its JSON body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.errors import InvalidSlo
from serving.request_fields import TAG_OF_FIELD, with_tags


def tags(**document: Any) -> dict[str, Any]:
    """The tags of a body with these fields."""
    changed = json.loads(with_tags(json.dumps(document).encode()))
    assert not changed.keys() & TAG_OF_FIELD.keys()
    found: dict[str, Any] = changed.get("vllm_xargs", {})
    return found


def test_fields_become_tags_beside_those_that_are_there() -> None:
    assert tags(deadline=2.5) == {"slo_deadline_s": 2.5}
    assert tags(deadline=2.5, waiting_time=1, vllm_xargs={"slo_user": "ann", "other": 1}) == {
        "slo_deadline_s": 2.5,
        "slo_waiting_s": 1,
        "slo_user": "ann",
        "other": 1,
    }


def test_a_target_of_a_stream_implies_its_kind() -> None:
    assert tags(target_ttft=1.0) == {"slo_ttft_s": 1.0, "slo_kind": "latency"}
    assert tags(target_tbt=0.1)["slo_kind"] == "latency"
    assert tags(target_tbt=0.1, vllm_xargs={"slo_kind": "latency"})["slo_tbt_s"] == 0.1


def test_null_is_no_field() -> None:
    assert tags(deadline=None, model="m") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"prompt": "the \\"deadline\\" is near"}',
        b'{"messages": [{"deadline": 3}]}',
        b'{"prompt": "\\u0041"}',
        b'{"deadline":' + b"[" * 100_000,
    ],
)
def test_a_body_without_these_fields_is_not_changed(body: bytes) -> None:
    assert with_tags(body) is body


@pytest.mark.parametrize(
    "body", [b'{"dead\\u006cine": 3}', '{"deadline": 3}'.encode("utf-16"), b'{"deadline":3}']
)
def test_a_field_is_found_however_it_is_spelled(body: bytes) -> None:
    assert b"slo_deadline_s" in with_tags(body)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"deadline": -1}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"target_ttft": 0}, "target_ttft"),
        ({"waiting_time": []}, "waiting_time"),
        ({"deadline": 3, "target_ttft": 1}, "target_ttft"),
        ({"deadline": 3, "vllm_xargs": {"slo_deadline_s": 3}}, "deadline"),
        ({"deadline": 3, "vllm_xargs": {"slo_kind": "latency"}}, "deadline"),
        ({"deadline": 3, "vllm_xargs": {"slo_bogus": 1}}, "slo_bogus"),
        ({"deadline": 3, "vllm_xargs": [1]}, "vllm_xargs"),
    ],
)
def test_an_invalid_value_is_refused_by_the_name_of_its_field(
    document: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidSlo) as caught:
        with_tags(json.dumps(document).encode())
    assert caught.value.args[0] == named
