"""Values survive recording unchanged, or are refused with ResultNotSerialisable."""

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
    """A model with an alias, an excluded, a private and a computed field."""

    by_alias: float = Field(alias="byAlias")
    left_out: int = Field(default=1, exclude=True)
    _seen: int = PrivateAttr(default=0)

    @computed_field
    def doubled(self) -> float:
        return 2 * self.by_alias


class Longer(Named):
    more: int = 0


class Reply(StrEnum):
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


RECORDABLE: list[tuple[Any, Any]] = [
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
    (Reply, Reply.YES),
    (Pair, Pair(1, "a")),
    (int | str, "5"),
    (float, 3),
    (None, None),
    (int | None, None),
]


@pytest.mark.parametrize(("annotation", "value"), RECORDABLE)
def test_a_recordable_value_is_read_back_unchanged(annotation: Any, value: Any) -> None:
    codec = ValueCodec("it", annotation)
    assert codec.load(codec.dump(value)) == value


@pytest.mark.parametrize("annotation", [float, Any, list[float], dict[str, Any]])
def test_nan_is_read_back_as_nan(annotation: Any) -> None:
    value = {list[float]: [math.nan], dict[str, Any]: {"a": math.nan}}.get(annotation, math.nan)
    codec = ValueCodec("it", annotation)
    assert repr(codec.load(codec.dump(value))) == repr(value)


class Renamed(BaseModel):
    one: int = Field(validation_alias="ONE")
    two: int = Field(serialization_alias="TWO", default=2)
    three: int = Field(validation_alias=AliasChoices("drei", "tres"), default=3)


@dataclass(eq=False)
class Holder:
    value: Any


def test_a_model_with_aliases_is_read_back_unchanged() -> None:
    codec = ValueCodec("it", list[Renamed])
    value = [Renamed.model_validate({"ONE": 1, "two": 5, "tres": 7})]
    assert codec.load(codec.dump(value)) == value


def test_a_dataclass_without_equality_is_compared_by_its_fields() -> None:
    ValueCodec("it", Holder).dump(Holder([1]))
    with pytest.raises(ResultNotSerialisable):
        ValueCodec("it", Holder).dump(Holder((1,)))


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
def test_a_value_that_would_be_read_back_differently_is_refused(
    annotation: Any, value: Any
) -> None:
    with pytest.raises(ResultNotSerialisable, match="the value of it cannot be recorded"):
        ValueCodec("it", annotation).dump(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_every_json_value_is_read_back_unchanged(value: Any) -> None:
    codec = ValueCodec("it", Any)
    assert repr(codec.load(codec.dump(value))) == repr(value)


def test_a_recorded_value_that_does_not_fit_its_type_raises_result_unreadable() -> None:
    with pytest.raises(ResultUnreadable, match="the recorded value of it"):
        ValueCodec("it", int).load(b'"text"')
    with pytest.raises(ResultUnreadable):
        ValueCodec("it", int).load(b"{")
