"""Values survive recording unchanged, or are refused with ResultNotSerialisable."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
)

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


class Level(IntEnum):
    HIGH = 2


class Text(str):
    """A text with a class of its own, as those of LangChain's messages."""


class Colour(Enum):
    RED = "red"


@dataclass
class Partly:
    """Its equality compares one field of three."""

    compared: int
    hidden: Any = field(default=None, compare=False)
    computed: int = field(default=0, init=False, compare=False)


class Event(BaseModel):
    """Times at every depth; it is built on first use."""

    model_config = ConfigDict(defer_build=True)

    at: AwareDatetime
    default: datetime | None = None
    daily: dict[str, list[time]] = {}
    within: list[Event] = []

    @cached_property
    def lazily(self) -> object:
        return object()


class Nameless(tzinfo):
    """A zone with two offsets and without a name."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        return None if at is None else timedelta(hours=at.month % 2)


def computed(value: int) -> Partly:
    partly = Partly(1)
    partly.computed = value
    return partly


def with_attribute(point: Point) -> Point:
    point.colour = "red"  # type: ignore[attr-defined]
    return point


def looked_at(event: Event) -> Event:
    assert event.lazily
    return event


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
    (str, Text("plain when it is read")),
    (None, None),
    (int | None, None),
    (Partly, Partly(1, [2])),
    (dict[str, Reply | Level], {"a": Reply.YES, "b": Level.HIGH}),
    (Colour, Colour.RED),
    (Counter[str], Counter("aab")),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (defaultdict[str, list[int]], defaultdict(list, a=[1])),
    (deque[int], deque([1, 2])),
    (dict[Level, frozenset[str]], {Level.HIGH: frozenset("ab")}),
]


@pytest.mark.parametrize(("annotation", "value"), RECORDABLE)
def test_a_recordable_value_is_read_back_unchanged(annotation: Any, value: Any) -> None:
    codec = ValueCodec("it", annotation)
    restored = codec.load(codec.dump(value))
    assert restored == value
    assert type(restored) is (annotation if annotation in (float, str) else type(value))


BERLIN = ZoneInfo("Europe/Berlin")
REPEATED = datetime(2026, 10, 25, 2, 30)
"""Twice in Berlin: first with the summer's offset, then, with fold=1, with the winter's."""

TIMES: list[datetime] = [
    datetime(2026, 7, 1, tzinfo=BERLIN),
    REPEATED.replace(tzinfo=BERLIN),
    REPEATED.replace(tzinfo=BERLIN, fold=1),
    datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
    REPEATED.replace(fold=1),
    datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=ZoneInfo("UTC")),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2), "CEST")),
    datetime(2026, 1, 1, tzinfo=UTC, fold=1),
]


def detailed(at: datetime | time | None) -> object:
    """All that a time holds; a fixed offset has no name."""
    zone = None if at is None else at.tzinfo
    offset = zone and zone.utcoffset(None)
    return at and (at.replace(tzinfo=None).isoformat(), at.fold, getattr(zone, "key", offset))


@pytest.mark.parametrize("at", TIMES, ids=repr)
def test_a_time_keeps_its_zone_and_its_fold_wherever_it_is(at: datetime) -> None:
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    event = Event(at=aware, default=at, daily={"a": [at.timetz()]}, within=[Event(at=aware)])
    codec = ValueCodec("it", dict[datetime, tuple[Event, datetime | None]])
    [(key, (read, alone))] = codec.load(codec.dump({at: (looked_at(event), at)})).items()
    assert detailed(key) == detailed(alone) == detailed(read.default) == detailed(at)
    assert detailed(read.daily["a"][0]) == detailed(at.timetz())
    assert detailed(read.at) == detailed(read.within[0].at) == detailed(aware)
    assert type(read) is Event


def test_a_day_after_a_change_of_clocks_is_the_same_time_of_day() -> None:
    codec = ValueCodec("it", datetime)
    read = codec.load(codec.dump(datetime(2026, 10, 24, 12, tzinfo=BERLIN)))
    assert (read + timedelta(days=1)).utcoffset() == timedelta(hours=1)


def test_a_time_without_a_named_zone_is_recorded_as_former_versions_read_it() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert ValueCodec("it", list[datetime]).dump([at]) == b'["2026-01-01T00:00:00+02:00"]'


def test_a_zone_that_this_machine_does_not_know_is_named() -> None:
    with pytest.raises(ResultUnreadable, match="Europe/Atlantis"):
        ValueCodec("it", datetime).load(b'"2026-01-01T00:00:00+02:00[Europe/Atlantis]"')


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
    (Partly, Partly(1, (2,))),
    (Partly, Partly(1, Point())),
    (Partly, computed(5)),
    (Point, with_attribute(Point())),
    (dict[str, Any], {"inside": Reply.YES}),
    (dict[str, Any], {"inside": Level.HIGH}),
    (dict[str, Any], {"inside": Counter("ab")}),
    (dict[str, Any], {"inside": OrderedDict(a=1)}),
    (dict[Any, int], {Reply.YES: 1}),
    (list[Any], [{"a": [Reply.YES]}]),
    (str, Reply.YES),
    (int, Level.HIGH),
    (int, True),
    (deque[int], deque([1], maxlen=2)),
    (defaultdict[str, int], defaultdict(lambda: 5, a=1)),
    (datetime, datetime(2026, 1, 1, tzinfo=Nameless())),
    (time, time(2, 30, tzinfo=Nameless())),
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


def test_the_reason_says_which_part_would_be_read_back_as_what() -> None:
    with pytest.raises(
        ResultNotSerialisable, match=r"\['a'\]\[1\] \(Reply\) would be read back as str"
    ):
        ValueCodec("it", dict[str, Any]).dump({"a": [1, Reply.YES]})


ZONES = st.sampled_from([None, UTC, BERLIN, ZoneInfo("Australia/Lord_Howe")])
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (str, st.text()),
    (Any, st.none() | st.booleans() | st.sampled_from([Reply.YES, Level.HIGH, 1.5, "yes"])),
    (Reply, st.sampled_from(Reply)),
    (Level | None, st.none() | st.sampled_from(Level)),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (timedelta, st.timedeltas()),
    (datetime, st.datetimes(timezones=ZONES)),
    (time, st.times(timezones=ZONES)),
    (Partly, st.builds(Partly, st.integers(), st.sampled_from([1, (1,), [1], Level.HIGH]))),
    (Pair, st.builds(Pair, st.integers(), st.text())),
]
WITHIN: list[Any] = [
    lambda kind, inner: (list[kind], st.lists(inner, max_size=3)),
    lambda kind, inner: (tuple[kind, ...], st.lists(inner, max_size=3).map(tuple)),
    lambda kind, inner: (dict[str, kind], st.dictionaries(st.text(), inner, max_size=3)),
    lambda kind, inner: (dict[str, Any], st.dictionaries(st.text(), inner, max_size=3)),
    lambda kind, inner: (
        deque[kind],
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 3])),
    ),
    lambda kind, inner: (OrderedDict[str, kind], inner.map(lambda item: OrderedDict(a=item))),
    lambda kind, inner: (Partly, inner.map(lambda item: Partly(1, item))),
    lambda kind, inner: (kind | None, st.none() | inner),
]


@st.composite
def annotated_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """An annotation, and a value that a type checker would accept for it."""
    kind, values = draw(st.sampled_from(KINDS))
    for within in draw(st.lists(st.sampled_from(WITHIN), max_size=3)):
        kind, values = within(kind, values)
    return kind, draw(values)


@given(annotated_values())
def test_a_value_is_read_back_with_its_type_and_content_or_refused(
    annotated: tuple[Any, Any],
) -> None:
    annotation, value = annotated
    codec = ValueCodec("it", annotation)
    try:
        data = codec.dump(value)
    except ResultNotSerialisable:
        return
    # A repr names the types, the fold and the zone of all parts. It calls UTC by two names.
    assert repr(codec.load(data)).replace("TzInfo(0)", "datetime.timezone.utc") == repr(value)


def test_a_recorded_value_that_does_not_fit_its_type_raises_result_unreadable() -> None:
    with pytest.raises(ResultUnreadable, match="the recorded value of it"):
        ValueCodec("it", int).load(b'"text"')
    with pytest.raises(ResultUnreadable):
        ValueCodec("it", int).load(b"{")
