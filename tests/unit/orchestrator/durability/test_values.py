"""Values that are recorded come back as they were, or are refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, PrivateAttr, SecretStr, computed_field

from orchestrator import ResultNotSerialisable, ResultUnreadable
from orchestrator.durability.values import ValueCodec


class Named(BaseModel):
    """A model whose JSON has other names and more in it than its instances are made of."""

    by_alias: float = Field(alias="byAlias")
    left_out: int = Field(default=1, exclude=True)
    _seen: int = PrivateAttr(default=0)

    @computed_field
    def doubled(self) -> float:
        return 2 * self.by_alias


class Longer(Named):
    more: int = 0


class Word(StrEnum):
    YES = "yes"


class Pair(NamedTuple):
    first: int
    second: str


@dataclass
class Point:
    x: int = 0


@dataclass
class Solid(Point):
    y: int = 1


def changed(model: Named) -> Named:
    model.left_out = 7
    return model


KEPT: list[tuple[Any, Any]] = [
    (float, math.inf),
    (list[float], [1.0, -math.inf]),
    (dict[str, Any], {"a": [1, None, {"b": True}]}),
    (Any, [1.5, "text", None]),
    (Named, Named(byAlias=1.5)),
    (list[Named], [Named(byAlias=1.5)]),
    (Point | Solid, Solid(2)),
    (str, "a lone surrogate: \ud800"),
    (Any, ["\ud800"]),
    (bytes, b"\xff\x00"),
    (set[int], {1, 2}),
    (tuple[int, ...], (1, 2)),
    (dict[int, str], {1: "a"}),
    (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=7)),
    (Path, Path("/tmp")),
    (Word, Word.YES),
    (Pair, Pair(1, "a")),
    (int | str, "5"),
    (float, 3),
    (None, None),
    (int | None, None),
]


@pytest.mark.parametrize(("annotation", "value"), KEPT)
def test_what_is_recorded_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    codec = ValueCodec("it", annotation)
    assert codec.load(codec.dump(value)) == value


@pytest.mark.parametrize("annotation", [float, Any, list[float], dict[str, Any]])
def test_what_is_no_number_comes_back_as_such(annotation: Any) -> None:
    value = {list[float]: [math.nan], dict[str, Any]: {"a": math.nan}}.get(annotation, math.nan)
    codec = ValueCodec("it", annotation)
    assert repr(codec.load(codec.dump(value))) == repr(value)


class Renamed(BaseModel):
    one: int = Field(validation_alias="ONE")
    two: int = Field(serialization_alias="TWO", default=2)
    three: int = Field(validation_alias=AliasChoices("drei", "tres"), default=3)


@dataclass(eq=False)
class Held:
    any: Any


def test_a_model_of_other_names_comes_back() -> None:
    codec = ValueCodec("it", list[Renamed])
    value = [Renamed.model_validate({"ONE": 1, "two": 5, "tres": 7})]
    assert codec.load(codec.dump(value)) == value


def test_what_cannot_be_compared_is_compared_by_what_it_holds() -> None:
    ValueCodec("it", Held).dump(Held([1]))
    with pytest.raises(ResultNotSerialisable):
        ValueCodec("it", Held).dump(Held((1,)))


REFUSED: list[tuple[Any, Any]] = [
    (Any, (1, 2)),
    (Any, {1: "a"}),
    (dict[str, Any], {"a": (1, 2)}),
    (dict[str, Any], {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
    (dict[str, Any], {"inside": Point()}),
    (dict, {1: 2}),
    (list, [(1,)]),
    (str, None),
    (Named, Longer(byAlias=1.0)),
    (list[Named], [Longer(byAlias=1.0)]),
    (Named, changed(Named(byAlias=1.0))),
    (Named, Named(byAlias=math.nan)),
    (Point, Solid()),
    (list[Point], [Solid()]),
    (SecretStr, SecretStr("a password")),
    (object, object()),
]


@pytest.mark.parametrize(("annotation", "value"), REFUSED)
def test_what_would_come_back_otherwise_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ResultNotSerialisable, match="the value of it cannot be recorded"):
        ValueCodec("it", annotation).dump(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_all_that_json_can_say_comes_back(value: Any) -> None:
    codec = ValueCodec("it", Any)
    assert repr(codec.load(codec.dump(value))) == repr(value)


def test_what_is_of_another_type_by_now_has_a_name() -> None:
    with pytest.raises(ResultUnreadable, match="the recorded value of it"):
        ValueCodec("it", int).load(b'"text"')
    with pytest.raises(ResultUnreadable):
        ValueCodec("it", int).load(b"{")
