"""How answers are sampled, and the types that they are read as, on the real engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from orchestrator import Runtime, flow, llm
from serving.engine.clients.embedded import EmbeddedEngine
from serving.errors import InvalidRequest
from serving.generation import GenerationRequest
from store.session import Store, open_store


def call(**changes: Any) -> GenerationRequest:
    settings = {"prompt": "The engine read the plan and", "max_tokens": 24, "temperature": 1.0}
    return GenerationRequest(request_id="r", **(settings | changes))


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
async def test_the_most_probable_tokens_alone_are_the_greedy_answer(
    engine: EmbeddedEngine, narrow: dict[str, Any]
) -> None:
    greedy = await engine.generate(call(temperature=0.0))
    sampled = await engine.generate(call(seed=1))
    narrowed = [await engine.generate(call(seed=seed, **narrow)) for seed in (1, 2)]
    assert sampled.text != greedy.text
    assert [each.text for each in narrowed] == [greedy.text] * 2


async def test_a_top_k_above_the_vocabulary_changes_nothing(engine: EmbeddedEngine) -> None:
    free = await engine.generate(call(seed=3))
    assert (await engine.generate(call(seed=3, top_k=2**31 - 1))).text == free.text


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
async def test_a_penalty_below_0_makes_an_answer_repeat_its_tokens(
    engine: EmbeddedEngine, penalty: str
) -> None:
    """And one above 0 makes it repeat fewer."""

    async def num_different(value: float) -> int:
        settings = {"max_tokens": 60, "seed": 5, "logprobs": 0, penalty: value}
        completion = await engine.generate(call(**settings))
        return len(Counter(token.text for token in completion.tokens))

    fewest, free, most = [await num_different(value) for value in (-2.0, 0.0, 2.0)]
    assert fewest <= free <= most
    assert fewest < most


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"min_p": 2}, {"presence_penalty": 3}], ids=str)
async def test_a_wrong_value_is_refused_by_name(
    engine: EmbeddedEngine, wrong: dict[str, Any]
) -> None:
    [name] = wrong
    with pytest.raises(InvalidRequest, match=f"{name} must be"):
        await engine.generate(call(**wrong))


@dataclass
class City:
    name: Annotated[str, Field(max_length=12)]
    rivers: Annotated[list[Annotated[str, Field(max_length=8)]], Field(max_length=2)]


class Route(TypedDict):
    length: Annotated[int, Field(ge=0, le=999)]
    kind: Literal["road", "rail"]


class Point(BaseModel):
    x: Annotated[int, Field(ge=0, le=9)]


class Tree(BaseModel):
    branches: Annotated[list[Tree], Field(max_length=1)]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: Digit


Digit = Annotated[int, Field(ge=0, le=9)]
Short = Annotated[str, Field(max_length=10)]
SHAPES = [
    Annotated[list[Digit], Field(min_length=1, max_length=3)],
    City,
    Annotated[list[City], Field(max_length=2)],
    Route,
    Point | Route,
    Literal["yes", "no"],
    Digit,
    Digit | None,
    bool,
    Short,
    tuple[Digit, Short],
    Annotated[set[Digit], Field(min_length=1, max_length=3)],
    Annotated[dict[Short, Digit], Field(max_length=2)],
    date,
    UUID,
    Tree,
    Annotated[Cat | Dog, Field(discriminator="kind")],
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:40])
async def test_an_answer_of_a_model_has_the_type_that_was_asked_for(
    engine: EmbeddedEngine, store: Store, shape: Any
) -> None:
    found: list[Any] = []

    @flow
    async def asking() -> None:
        found.append(await llm("Where?", schema=shape, max_tokens=400, seed=3, temperature=0.5))

    await Runtime(engine, store).run(asking)
    adapter: TypeAdapter[Any] = TypeAdapter(shape)
    assert adapter.validate_python(found[0], strict=True) == found[0]
