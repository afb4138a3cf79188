"""What an analyzer is told about a request."""

from __future__ import annotations

from typing import Any

import pytest

from serving.analyzer.messages import Arrival
from serving.engine.server.advice.request_shape import MAX_LINKS, arrival_of

SYSTEM = {"role": "system", "content": "You plan. Today is 2026-11-28."}
QUESTION = {"role": "user", "content": "What is a goodput?"}
ANSWER = {"role": "assistant", "content": "The work that meets its SLO."}
MORE = {"role": "user", "content": "And a deadline?"}


def described(**body: Any) -> Arrival:
    arrival = arrival_of({"model": "m", **body}, call="c", at_s=1.0)
    assert arrival is not None
    return arrival


def test_a_conversation_continues_a_former_one() -> None:
    first = described(messages=[SYSTEM, QUESTION])
    second = described(messages=[SYSTEM, QUESTION, ANSWER, MORE])
    assert len(second.links) == 4
    assert second.links[1] == first.links[-1]
    assert described(messages=[SYSTEM, MORE]).links[-1] not in second.links


def test_texts_and_token_ids_have_links_of_whole_pieces() -> None:
    text = "Answer the question at the end of this text. " * 4
    first, second = described(prompt=text), described(prompt=text + "And one more question. " * 9)
    assert first.links
    assert first.links[-1] in second.links[:-1]
    assert described(prompt="short").links == ()
    ids = list(range(40))
    assert described(prompt=ids).links == described(prompt=[*ids, 7]).links
    assert len(described(prompt=ids).links) == 2


def test_a_long_conversation_sends_its_newest_links() -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(100)]
    links = described(messages=messages).links
    assert len(links) == MAX_LINKS
    assert links[-2] == described(messages=messages[:-1]).links[-1]


def test_the_shape_is_of_the_instructions_the_tools_and_the_schema() -> None:
    shape = described(messages=[SYSTEM, QUESTION]).shape
    tomorrow = {"role": "system", "content": "You plan. Today is 2026-11-29."}
    assert described(messages=[tomorrow, MORE]).shape == shape
    other = {"role": "developer", "content": "You judge."}
    assert described(messages=[other, QUESTION]).shape != shape
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    assert described(messages=[SYSTEM, QUESTION], tools=tools).shape != shape
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    structured = described(messages=[SYSTEM, QUESTION], response_format=schema)
    assert structured.shape != shape
    assert structured.structured


def test_the_responses_api() -> None:
    arrival = described(
        input=[QUESTION], instructions="You plan.", previous_response_id="resp_1", user="ann"
    )
    assert arrival.previous == "resp_1"
    assert (arrival.user, arrival.end_user) == ("ann", "ann")
    assert described(input="What?", instructions="You plan.").shape == arrival.shape


def test_the_user_of_the_key_counts_and_the_one_of_the_body_is_the_end_user() -> None:
    arrival = arrival_of({"prompt": "x", "user": "ann"}, call="c", at_s=0.0, user="team")
    assert arrival is not None
    assert (arrival.user, arrival.end_user) == ("team", "ann")


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens", "max_output_tokens"])
def test_the_limit_of_an_answer(name: str) -> None:
    assert described(prompt="x", **{name: 9}).max_tokens == 9


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ["one", "two"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": []},
        {"messages": ["x"]},
        {"prompt": "x", "n": 2},
        {"input": "x", "background": True},
    ],
)
def test_what_is_not_analyzed(body: dict[str, Any]) -> None:
    assert arrival_of(body, call="c", at_s=0.0) is None


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": 1, "content": [1, {"text": None}, {"image_url": {}}]}]},
        {"messages": [{}], "tools": ["x", {"function": 3}], "temperature": "hot"},
        {"prompt": "x", "max_tokens": -1, "temperature": float("nan"), "top_p": 1e9},
        {"input": [{"type": "function_call_output", "output": "3"}], "user": 3},
        {"prompt": "\ud800"},
    ],
)
def test_odd_bodies_are_described_and_left_for_vllm_to_refuse(body: dict[str, Any]) -> None:
    arrival = described(**body)
    assert arrival.max_tokens is None
    assert arrival.temperature == 1.0
    assert arrival.user == ""


def test_no_text_leaves_the_server() -> None:
    arrival = described(messages=[SYSTEM, {"role": "user", "content": "the secret"}])
    assert "secret" not in repr(arrival)


def test_long_names_are_sent_as_their_hash() -> None:
    name = "x" * 700_000
    long = described(messages=[QUESTION], user=name, previous_response_id=name)
    assert long.user == long.end_user == long.previous == described(prompt="p", user=name).user
    assert len(long.user) == 16
    assert described(prompt="p", user=name + "y").user != long.user
    assert described(prompt="p", user="x" * 256).user == "x" * 256


def test_beam_search_is_not_analyzed() -> None:
    body = {"model": "m", "prompt": "p", "use_beam_search": True}
    assert arrival_of(body, call="c", at_s=1.0) is None
