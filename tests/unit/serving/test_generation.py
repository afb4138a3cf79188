"""What a caller gets back, the same from every engine."""

from collections.abc import AsyncIterator

import pytest

from serving.errors import StructuredOutputInvalid
from serving.generation import Chunk, Completion, FinishReason, Usage, last_completion


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
