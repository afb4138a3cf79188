"""Completions and the check of requests, which are the same for every engine."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.generation import (
    Chunk,
    Completion,
    FinishReason,
    GenerationRequest,
    Message,
    Usage,
    check_request,
    last_completion,
)


def completion(text: str, reason: FinishReason = "stop") -> Completion:
    return Completion("r", text, reason, Usage(1, 1), ttft_s=0.0, e2el_s=0.0)


def test_valid_json_is_parsed() -> None:
    assert completion('{"a": [1, 2]}').parsed() == {"a": [1, 2]}


def test_text_that_is_not_json_is_a_named_error() -> None:
    with pytest.raises(StructuredOutputInvalid, match="no valid structured output"):
        completion("{").parsed()


def test_the_error_of_output_cut_by_max_tokens_says_what_to_do() -> None:
    with pytest.raises(StructuredOutputInvalid, match="raise max_tokens"):
        completion('{"a": "b', "length").parsed()


async def chunks(*parts: Chunk) -> AsyncIterator[Chunk]:
    for part in parts:
        yield part


async def test_the_last_chunk_carries_the_completion() -> None:
    done = completion("ab")
    assert await last_completion(chunks(Chunk("a"), Chunk("b", done))) is done


async def test_a_stream_without_a_completion_fails_an_assertion() -> None:
    with pytest.raises(AssertionError):
        await last_completion(chunks(Chunk("a")))


def request(**changes: Any) -> GenerationRequest:
    return GenerationRequest(**({"request_id": "mine", "prompt": "go on"} | changes))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"seed": 0, "stop": ("a", "b"), "max_tokens": 7, "priority": -3},
        {"stop": ["a"]},
        {"prompt": (Message("user", "Why?"),)},
        {"prompt": ""},
        {"logprobs": 0},
        {"logprobs": 20},
        {"top_k": 1},
        {"top_k": 2**31 - 1},
        {"min_p": 0},
        {"min_p": 1.0},
        {"frequency_penalty": -2, "presence_penalty": 2.0},
    ],
    ids=repr,
)
def test_a_request_with_the_right_types_passes(fields: dict[str, Any]) -> None:
    check_request(request(**fields))


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": 2**63},
        {"seed": -(2**63) - 1},
        {"seed": 10**5000},
        {"seed": 1.5},
        {"seed": "7"},
        {"seed": True},
        {"stop": (b"a",)},
        {"stop": ("a", b"b")},
        {"stop": (1,)},
        {"stop": ("",)},
        {"stop": "a text that would be taken for its letters"},
        {"stop": None},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"priority": "1"},
        {"priority": None},
        {"prompt": None},
        {"prompt": b"bytes"},
        {"prompt": ("no message",)},
        {"prompt": (Message("user", 5),)},  # type: ignore[arg-type]
        {"slo": None},
        {"logprobs": -1},
        {"logprobs": 21},
        {"logprobs": True},
        {"logprobs": "1"},
        {"logprobs": 1.0},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 2**31},
        {"top_k": 1.5},
        {"top_k": True},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": "0.5"},
        {"min_p": float("nan")},
        {"min_p": None},
        {"frequency_penalty": 2.1},
        {"frequency_penalty": True},
        {"presence_penalty": -2.1},
        {"presence_penalty": 10**400},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_the_error_of_a_wrong_type_names_the_field(wrong: dict[str, Any]) -> None:
    [field] = wrong
    with pytest.raises(InvalidRequest, match=field) as refused:
        check_request(request(**wrong))
    assert refused.value.args[0] == "mine"


def test_choices_and_log_probabilities_of_all_tokens_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="choices and logprobs exclude each other"):
        check_request(request(choices=("A", "B"), logprobs=2))
