"""Reports of replicas, usage in answers, events and errors: the pure parts of the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.error_answers import error_event, unknown_model
from serving.gateway.events import MAX_HELD_BYTES, WholeEvents
from serving.gateway.prefixes import BLOCK_CHARACTERS, MAX_BLOCKS, SentPrefixes, blocks_of
from serving.gateway.reports import InvalidReport, parse_report
from serving.gateway.retries import Outcome, may_retry, outcome_of_status
from serving.gateway.token_estimates import Usage, usage_at_end
from serving.router.snapshot import Speed
from tests.unit.serving.gateway.gateway_examples import report, report_json


def test_a_report_becomes_a_snapshot() -> None:
    parsed = report(work_s=1.5, num_running=3)
    assert (parsed.boot_id, parsed.models, parsed.draining) == ("1", ("m",), False)
    assert (parsed.snapshot.work_s, parsed.snapshot.num_running) == (1.5, 3)
    assert parsed.snapshot.speed == Speed(0.001, 0.002, 0.004)
    assert report(speed=[0.1, 0.2, 0.3]).snapshot.speed == Speed(0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", "m"),
        ("models", [1]),
        ("boot_id", 7),
        ("age_s", -1.0),
        ("age_s", True),
        ("work_s", None),
        ("work_s", float("inf")),
        ("due_work_s", [0.0]),
        ("due_work_s", ["x"] * 10),
        ("kv_blocks", 1.5),
        ("block_tokens", 0),
        ("speed", [0.1, 0.2]),
        ("speed", {"token_s": 0.1}),
        ("speed", [0.1, 0.2, 0.0]),
    ],
)
def test_an_invalid_member_of_a_report_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidReport, match=f"{name}|token_s"):
        report(**{name: value})


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"snapshot": 1}', b"<html>"])
def test_what_is_no_report_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidReport):
        parse_report(content)


def test_a_report_without_a_member_is_refused() -> None:
    for name in report_json()["snapshot"]:
        document = report_json()
        del document["snapshot"][name]
        with pytest.raises(InvalidReport, match=name):
            parse_report(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (b'..."usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}', Usage(7, 2)),
        (b'"usage": {"input_tokens": 7, "output_tokens": 2}', Usage(7, 2)),
        (b'"usage":{"prompt_tokens":7,"total_tokens":7}', Usage(7, 0)),
        (b'data: {"usage":null}', None),
        (rb'"content":"\"usage\":{\"prompt_tokens\":7}"', None),
        (b"", None),
    ],
)
def test_usage_is_read_from_the_end_of_an_answer(tail: bytes, usage: Usage | None) -> None:
    assert usage_at_end(tail) == usage


@given(st.lists(st.sampled_from([b"data: x\n\n", b": k\n\n", b"a", b"\n", b"\r\n\r\n"])), st.data())
def test_only_whole_events_are_passed_on_and_nothing_is_lost(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream, events, passed = b"".join(parts), WholeEvents(), b""
    left = stream
    while left:
        size = data.draw(st.integers(1, len(left)))
        passed += events.feed(left[:size])
        left = left[size:]
        assert passed.endswith((b"\n\n", b"\r\n\r\n")) or not passed
    assert passed + events.rest() == stream
    assert stream.startswith(passed)


def test_an_event_that_does_not_end_is_not_held_for_ever() -> None:
    events = WholeEvents()
    assert not events.feed(b"x" * MAX_HELD_BYTES)
    assert len(events.feed(b"x")) == MAX_HELD_BYTES + 1


def test_a_stream_ends_with_the_error_that_its_clients_read() -> None:
    event = error_event("/v1/chat/completions", "gone", num_events=3).decode()
    first, done = event.strip().split("\n\n")
    assert done == "data: [DONE]"
    error = json.loads(first.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("gone", 502)
    kind, data = error_event("/v1/responses", "gone", num_events=3).decode().strip().split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["sequence_number"] == 3


def test_the_error_of_an_unknown_model_is_that_of_vllm() -> None:
    error = json.loads(unknown_model("x"))["error"]
    assert error == {
        "message": "The model `x` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


@pytest.mark.parametrize(
    ("status", "is_retried"),
    [*((each, False) for each in (200, 400, 404, 429, 500, 504)), (502, True), (503, True)],
)
def test_only_what_another_replica_may_answer_is_retried(status: int, is_retried: bool) -> None:
    assert may_retry(outcome_of_status(status)) is is_retried


def test_nothing_is_retried_after_the_first_byte() -> None:
    assert may_retry(Outcome.UNREACHABLE)
    assert not may_retry(Outcome.CUT_OFF)
    assert not may_retry(Outcome.DISCONNECTED)


@given(st.integers(0, 5), st.integers(0, 5))
def test_the_shared_prefix_is_that_of_whole_blocks(same: int, rest: int) -> None:
    sent = SentPrefixes()
    sent.add(blocks_of("p", "x" * BLOCK_CHARACTERS * (same + rest)))
    asked = blocks_of("p", "x" * BLOCK_CHARACTERS * same + "y" * BLOCK_CHARACTERS + "z")
    assert sent.shared_characters(asked) == same * BLOCK_CHARACTERS
    assert sent.shared_characters(blocks_of("q", "x" * BLOCK_CHARACTERS)) == 0
    assert blocks_of("", "x" * 9999) == ()


def test_the_memory_of_sent_prefixes_is_bounded_and_forgets_the_oldest() -> None:
    sent = SentPrefixes()
    sent.add([-1])
    sent.add(range(MAX_BLOCKS))
    assert len(sent._blocks) == MAX_BLOCKS
    assert not sent.shared_characters([-1])
    assert sent.shared_characters([0, 1]) == 2 * BLOCK_CHARACTERS
