"""Bodies of requests: the tags are replaced, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.body import parse_body
from serving.gateway.json_members import members_of
from serving.gateway.promises import demoted
from serving.slo import LEAST_S, SloKind, from_tags, remaining
from tests.unit.serving.gateway.gateway_examples import chat, due

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SPACE = st.sampled_from(["", " ", "\n\t", "\r\n"])


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.sampled_from([None, 2]))
def test_the_members_are_those_that_json_reads(document: dict[str, Any], indent: int) -> None:
    text = json.dumps(document, indent=indent)
    members = members_of(text)
    assert {name: member.value for name, member in members.items()} == document
    for member in members.values():
        assert json.loads(text[member.start : member.end]) == member.value


@given(st.text(st.sampled_from('{}[]",:1a \n\\'), max_size=12))
def test_a_text_is_an_object_for_us_exactly_if_it_is_one_for_json(text: str) -> None:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        assert {name: each.value for name, each in members_of(text).items()} == document
    else:
        with pytest.raises((ValueError, RecursionError)):
            members_of(text)


@given(before=SPACE, after=SPACE, text=st.text(max_size=20), first=st.booleans())
def test_replacing_the_tags_leaves_every_other_byte(
    before: str, after: str, text: str, first: bool
) -> None:
    tags = f'"vllm_xargs"{before}:{after}{json.dumps(due(2.0))}'
    others = f'"prompt":{before}{json.dumps(text, ensure_ascii=False)}, "x": 1.50'
    whole = f"{{{tags},{others}}}" if first else f"{{{others},{tags}}}"
    content = whole.encode("utf-8", "surrogatepass")
    body = parse_body(content, has_tags=True)
    assert dict(body.tags) == due(2.0)
    assert body.with_tags(due(2.0)) == content
    changed = body.with_tags(due(1.5))
    assert changed == content.replace(b'"slo_deadline_s": 2.0', b'"slo_deadline_s": 1.5')


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-32-be"])
def test_a_body_stays_in_its_encoding(encoding: str) -> None:
    content = json.dumps(chat("é", vllm_xargs=due(2.0)), ensure_ascii=False).encode(encoding)
    body = parse_body(content, has_tags=True)
    assert json.loads(body.with_tags(due(1.0)))["vllm_xargs"] == due(1.0)
    assert body.slo.deadline_s == 2.0


def test_what_a_router_must_know_of_a_request() -> None:
    document = chat("hello", stream=True, max_tokens=9, vllm_xargs=due(2.0, slo_program="p"))
    body = parse_body(json.dumps(document).encode(), has_tags=True)
    assert (body.model, body.is_stream, body.max_tokens) == ("m", True, 9)
    assert (body.slo.kind, body.slo.program) == (SloKind.DEADLINE, "p")
    assert json.loads(body.prompt) == document["messages"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": 1} x',
        b"{1: 2}",
    ],
)
def test_what_is_no_object_has_no_properties(content: bytes) -> None:
    body = parse_body(content, has_tags=True)
    assert (body.content, body.model, dict(body.tags)) == (content, "", {})


@pytest.mark.parametrize(
    "document",
    [
        chat(vllm_xargs={"slo_kind": "deadline"}),
        chat(vllm_xargs={"slo_nothing": 1}),
        chat(vllm_xargs=[1]),
        chat(vllm_xargs={"other": 1}),
        chat(),
    ],
)
def test_tags_that_are_missing_or_malformed_are_left_to_the_replica(
    document: dict[str, Any],
) -> None:
    body = parse_body(json.dumps(document).encode(), has_tags=True)
    assert not body.tags
    assert body.slo.kind is SloKind.BEST_EFFORT
    assert body.model == "m"


def test_the_fields_of_a_promise_are_tags_for_the_gateway_too() -> None:
    body = parse_body(b'{"model": "m", "deadline": 2.5}', has_tags=True)
    assert (body.model, body.slo) == ("m", from_tags({"slo_deadline_s": 2.5}))
    left = body.with_tags(remaining(body.tags, body.slo, spent_s=1.0))
    assert json.loads(left)["vllm_xargs"]["slo_deadline_s"] == pytest.approx(1.5)
    twice = b'{"deadline": 2.5, "vllm_xargs": {"slo_deadline_s": 3}}'
    assert parse_body(twice, has_tags=True).content == twice  # the replica refuses it


def test_other_paths_have_no_tags() -> None:
    content = json.dumps(chat(vllm_xargs=due(2.0))).encode()
    assert not parse_body(content, has_tags=False).tags


def test_the_data_of_files_is_no_text_of_the_prompt() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    body = parse_body(json.dumps({"messages": messages}).encode(), has_tags=True)
    assert len(body.prompt) > 9000
    assert body.prompt_characters < 200


def test_seconds_in_the_gateway_are_subtracted_from_every_promise() -> None:
    tags = {
        "slo_kind": "compound",
        "slo_deadline_s": 2.0,
        "slo_final_s": 9.0,
        "slo_waiting_s": 3.0,
        "slo_tbt_s": 0.1,
        "slo_program": "p",
        "other": "x",
    }
    left = remaining(tags, from_tags(tags), spent_s=0.5)
    assert left == tags | {"slo_deadline_s": 1.5, "slo_final_s": 8.5, "slo_waiting_s": 2.5}


def test_the_default_promises_of_a_stream_are_promises_too() -> None:
    tags = {"slo_kind": "latency"}
    left = remaining(tags, from_tags(tags), spent_s=1.0)
    assert left == tags | {"slo_ttft_s": 4.0, "slo_waiting_s": 4.0}


def test_what_is_no_longer_possible_has_the_least_time_and_is_valid() -> None:
    tags = due(2.0, slo_final_s=2.5, slo_on_late="drop")
    left = remaining(tags, from_tags(tags), spent_s=7.0)
    assert (left["slo_deadline_s"], left["slo_final_s"]) == (LEAST_S, LEAST_S)
    assert from_tags(left).on_late == "drop"


def test_a_demoted_request_is_best_effort_unless_it_is_to_be_dropped() -> None:
    tags = due(2.0, slo_user="u", other="x")
    assert demoted(tags, from_tags(tags)) == {"other": "x", "slo_user": "u"}
    dropped = due(2.0, slo_on_late="drop")
    assert demoted(dropped, from_tags(dropped)) == dropped
