"""Prompts as token ids: short ones do not wait for long ones, and what cannot fit is not read."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.clients.prompts import LONG_CHARS, Prompts, is_long, least_tokens
from serving.errors import InvalidRequest, PromptTooLong
from serving.generation import GenerationRequest, Message
from tests.strategies import law

LIMIT = 1000


class Pieces:
    """A tokenizer of which each token is the next PIECE characters; long texts may be held up."""

    PIECE = 16

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()

    def __deepcopy__(self, memo: object) -> Pieces:
        other = Pieces()
        other.lengths, other.reached, other.let_go = self.lengths, self.reached, self.let_go
        return other

    def get_vocab(self) -> dict[str, int]:
        return {"a" * self.PIECE: 0, "b": 1}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.lengths.append(len(text))
        if "refuse" in text:
            raise KeyError(text)
        if len(text) > LONG_CHARS:
            self.reached.set()
            assert self.let_go.wait(60)
        return [0] * -(-len(text) // self.PIECE)

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"{turn['role']}: {turn['content']}\n" for turn in turns)


def asked(prompt: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt=prompt)


async def tokens(
    prompts: Prompts, tokenizer: Any, prompt: Any, limit_tokens: int = LIMIT
) -> list[int]:
    """As the engine does it."""
    request, loop = asked(prompt), asyncio.get_running_loop()
    return await loop.run_in_executor(
        prompts.thread_for(request),
        lambda: prompts.tokens(tokenizer, request, limit_tokens=limit_tokens),
    )


async def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    prompts, tokenizer = Prompts(), Pieces()
    tokenizer.let_go.clear()
    long = asyncio.create_task(tokens(prompts, tokenizer, "a" * (LONG_CHARS + 1), 10_000))
    assert await asyncio.to_thread(tokenizer.reached.wait, 60)
    assert len(await tokens(prompts, tokenizer, "a" * 100)) == 7
    assert not long.done()
    tokenizer.let_go.set()
    assert len(await long) == LONG_CHARS // 16 + 1


@pytest.mark.parametrize("as_chat", [False, True])
async def test_what_can_never_fit_is_refused_without_being_read(as_chat: bool) -> None:
    tokenizer, text = Pieces(), "word " * 200_000
    prompt = (Message("user", text),) if as_chat else text
    with pytest.raises(PromptTooLong) as refused:
        await tokens(Prompts(), tokenizer, prompt)
    assert max(tokenizer.lengths) <= LONG_CHARS
    name, told, limit = refused.value.args
    assert (name, limit) == ("r", LIMIT - 1)
    assert told == pytest.approx(1_000_000 / 16, rel=0.01)


async def test_long_prompts_that_may_fit_are_read() -> None:
    """As white space, which a tokenizer may drop, and what a longer context has room for."""
    prompts, tokenizer = Prompts(), Pieces()
    for text, limit_tokens in ((" " * 1_000_000, LIMIT), ("a" * 100_000, 10_000)):
        found = await tokens(prompts, tokenizer, text, limit_tokens)
        assert len(found) == len(text) // 16
        assert tokenizer.lengths[-1] == len(text)


@pytest.mark.parametrize("length", [10, LONG_CHARS + 10])
async def test_what_a_tokenizer_raises_is_an_invalid_request(length: int) -> None:
    with pytest.raises(InvalidRequest, match="r: "):
        await tokens(Prompts(), Pieces(), "refuse".ljust(length), 10_000)


def test_many_short_turns_are_a_long_prompt() -> None:
    assert not is_long(asked(tuple([Message("user", "why?")] * 10)))
    assert is_long(asked(tuple([Message("user", "why?")] * 5000)))


@law
@given(st.lists(st.text(st.sampled_from("ab \n\u00e9"), min_size=1, max_size=8), max_size=60))
def test_no_division_into_tokens_has_fewer_than_the_least(pieces: list[str]) -> None:
    """However a text is divided into tokens of the vocabulary, these are its pieces."""
    assert least_tokens("".join(pieces), max(map(len, pieces), default=1)) <= len(pieces)


def test_composed_characters_and_swallowed_white_space_keep_within_the_least() -> None:
    """U+01D6 stands for three characters and is written in two bytes: one token of two."""
    assert least_tokens("u\u0308\u0304" * 1000, 2) <= 1000
    assert least_tokens(" \n\t" * 1000, 2) == 0
