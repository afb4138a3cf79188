"""What a caller gets back, the same from every engine."""

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
    last_completion,
    require_sound,
)


def completion(text: str, reason: FinishReason = "stop") -> Completion:
    return Completion("r", text, reason, Usage(1, 1), ttft_s=0.0, e2el_s=0.0)


def test_valid_json_is_parsed() -> None:
    assert completion('{"a": [1, 2]}').parsed() == {"a": [1, 2]}


def test_text_that_is_no_json_is_a_named_error() -> None:
    with pytest.raises(StructuredOutputInvalid, match="no valid structured output"):
        completion("{").parsed()


def test_output_cut_by_its_limit_says_how_to_mend_it() -> None:
    with pytest.raises(StructuredOutputInvalid, match="raise max_tokens"):
        completion('{"a": "b', "length").parsed()


async def chunks(*parts: Chunk) -> AsyncIterator[Chunk]:
    for part in parts:
        yield part


async def test_the_last_chunk_carries_the_completion() -> None:
    done = completion("ab")
    assert await last_completion(chunks(Chunk("a"), Chunk("b", done))) is done


async def test_a_stream_without_an_end_is_a_bug_of_its_engine() -> None:
    with pytest.raises(AssertionError):
        await last_completion(chunks(Chunk("a")))


def request(**changes: Any) -> GenerationRequest:
    return GenerationRequest(**({"request_id": "mine", "prompt": "go on"} | changes))


@pytest.mark.parametrize(
    "sound",
    [
        {},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"seed": 0, "stop": ("a", "b"), "max_tokens": 7, "priority": -3},
        {"stop": ["a"]},
        {"prompt": (Message("user", "Why?"),)},
        {"prompt": ""},
    ],
    ids=repr,
)
def test_a_request_of_the_right_types_is_sound(sound: dict[str, Any]) -> None:
    require_sound(request(**sound))


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
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_request_of_other_types_is_refused_by_the_fields_name(wrong: dict[str, Any]) -> None:
    [field] = wrong
    with pytest.raises(InvalidRequest, match=field) as refused:
        require_sound(request(**wrong))
    assert refused.value.args[0] == "mine"
