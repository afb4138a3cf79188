"""Prompts: short ones do not wait for long ones; those that cannot fit are not tokenized."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.clients.prompts import LONG_CHARS, Prompts, is_long, min_tokens
from serving.errors import InvalidRequest, PromptTooLong
from serving.generation import GenerationRequest, Message
from tests.strategies import law

LIMIT = 1000


class FakeTokenizer:
    """Cuts a text into tokens of TOKEN_CHARS characters; can block on long texts."""

    TOKEN_CHARS = 16

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.is_encoding_long = threading.Event()
        self.may_continue = threading.Event()
        self.may_continue.set()

    def __deepcopy__(self, memo: object) -> FakeTokenizer:
        copy = FakeTokenizer()
        copy.lengths = self.lengths
        copy.is_encoding_long, copy.may_continue = self.is_encoding_long, self.may_continue
        return copy

    def get_vocab(self) -> dict[str, int]:
        return {"a" * self.TOKEN_CHARS: 0, "b": 1}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.lengths.append(len(text))
        if "fail" in text:
            raise KeyError(text)
        if len(text) > LONG_CHARS:
            self.is_encoding_long.set()
            assert self.may_continue.wait(60)
        return [0] * -(-len(text) // self.TOKEN_CHARS)

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{turn['role']}: {turn['content']}\n" for turn in turns)


def request_for(prompt: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt=prompt)


async def tokens(
    prompts: Prompts, tokenizer: Any, prompt: Any, limit_tokens: int = LIMIT
) -> list[int]:
    """Tokenize a prompt as the engine does."""
    request, loop = request_for(prompt), asyncio.get_running_loop()
    return await loop.run_in_executor(
        prompts.thread_for(request),
        lambda: prompts.tokens(tokenizer, request, limit_tokens=limit_tokens),
    )


async def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    prompts, tokenizer = Prompts(), FakeTokenizer()
    tokenizer.may_continue.clear()
    long = asyncio.create_task(tokens(prompts, tokenizer, "a" * (LONG_CHARS + 1), 10_000))
    assert await asyncio.to_thread(tokenizer.is_encoding_long.wait, 60)
    assert len(await tokens(prompts, tokenizer, "a" * 100)) == 7
    assert not long.done()
    tokenizer.may_continue.set()
    assert len(await long) == LONG_CHARS // 16 + 1


@pytest.mark.parametrize("as_chat", [False, True])
async def test_a_prompt_that_can_never_fit_is_refused_without_being_tokenized(
    as_chat: bool,
) -> None:
    tokenizer, text = FakeTokenizer(), "word " * 200_000
    prompt = (Message("user", text),) if as_chat else text
    with pytest.raises(PromptTooLong) as raised:
        await tokens(Prompts(), tokenizer, prompt)
    assert max(tokenizer.lengths) <= LONG_CHARS
    name, prompt_tokens, limit = raised.value.args
    assert (name, limit) == ("r", LIMIT - 1)
    assert prompt_tokens == pytest.approx(1_000_000 / 16, rel=0.01)


async def test_long_prompts_that_may_fit_are_tokenized() -> None:
    """White space, which a tokenizer may drop; and a prompt for a long context."""
    prompts, tokenizer = Prompts(), FakeTokenizer()
    for text, limit_tokens in ((" " * 1_000_000, LIMIT), ("a" * 100_000, 10_000)):
        token_ids = await tokens(prompts, tokenizer, text, limit_tokens)
        assert len(token_ids) == len(text) // 16
        assert tokenizer.lengths[-1] == len(text)


@pytest.mark.parametrize("length", [10, LONG_CHARS + 10])
async def test_an_error_of_the_tokenizer_becomes_an_invalid_request(length: int) -> None:
    with pytest.raises(InvalidRequest, match="r: "):
        await tokens(Prompts(), FakeTokenizer(), "fail".ljust(length), 10_000)


def test_a_chat_of_many_short_turns_is_a_long_prompt() -> None:
    assert not is_long(request_for(tuple([Message("user", "why?")] * 10)))
    assert is_long(request_for(tuple([Message("user", "why?")] * 5000)))


@law
@given(st.lists(st.text(st.sampled_from("ab \n\u00e9"), min_size=1, max_size=8), max_size=60))
def test_no_tokenization_has_fewer_tokens_than_the_bound(pieces: list[str]) -> None:
    """The pieces stand for the tokens into which a tokenizer cuts a text."""
    assert min_tokens("".join(pieces), max(map(len, pieces), default=1)) <= len(pieces)


def test_the_bound_allows_for_composed_characters_and_absorbed_white_space() -> None:
    """U+01D6 composes three characters into two bytes: one token of two characters."""
    assert min_tokens("u\u0308\u0304" * 1000, 2) <= 1000
    assert min_tokens(" \n\t" * 1000, 2) == 0
