"""Compares a value with what is read back from its record: the types and contents of all parts."""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, time, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel

Parts = Iterator[tuple[str, Any, Any, Any]]
"""Pairs of parts to compare, after their place in the whole: a format and what is put into it."""

_SCALARS = (str, int, bool, bytes, type(None))
_MISSING = object()


def first_difference(value: Any, restored: Any) -> str | None:
    """Where two values first differ in type or content, in words; None if they are the same.

    All fields of dataclasses and models count, whatever their own `__eq__` compares; cached
    properties do not. Other objects are compared by `__eq__`. Those that define none, or that
    raise when compared, are the same if of one class.

    Three things count as the same: NaN and NaN; a number or text and the plain value that it equals
    (a 3 annotated as float is read as 3.0, a text of LangChain's own class as a str), but no enum
    or bool; two time zones with the same fixed offset.
    """
    difference = _difference(value, restored)
    return f"it{difference}" if difference and difference.startswith(" (") else difference


def _difference(value: Any, restored: Any) -> str | None:
    """As `first_difference`, in words that begin with the place of the part."""
    kind, restored_kind = type(value), type(restored)
    if kind is restored_kind and kind in _SCALARS:
        return None if value == restored else _in_words(value, restored)
    if _is_read_as(value, restored_kind):
        is_equal = value == restored or (value != value and restored != restored)
        return None if is_equal else _in_words(value, restored)
    if kind is not restored_kind:
        return _in_words(value, restored)
    parts = _parts(value, restored)
    if parts is None:
        return None if _is_equal(value, restored) else _in_words(value, restored)
    for place, name, part, restored_part in parts:
        if type(part) is type(restored_part) and type(part) in _SCALARS and part == restored_part:
            continue  # only to be fast: most parts are such
        if difference := _difference(part, restored_part):
            return place.format(name) + difference
    return None


def _in_words(value: Any, restored: Any) -> str:
    former, latter = (
        "nothing" if each is _MISSING else type(each).__name__ for each in (value, restored)
    )
    what = f"another {latter}" if former == latter else latter
    return f" ({former}) would be read back as {what}"


def _is_read_as(value: Any, plain: type) -> bool:
    """Whether a value may be read back as a plain float or str."""
    if plain not in (float, str) or isinstance(value, bool | Enum):
        return False
    return isinstance(value, (int, float) if plain is float else str)


def _is_equal(value: Any, restored: Any) -> bool:
    """Whether two values of one class without known parts are equal."""
    if isinstance(value, Enum | type):
        return value is restored
    if isinstance(value, Decimal):  # 1.0 and 1.00 are equal
        return bool(value.as_tuple() == restored.as_tuple())
    compare: Any = type(value).__eq__
    if compare is object.__eq__:
        return True
    try:
        return bool(value == restored or (value != value and restored != restored))
    except Exception:  # such as an array
        return True


def _parts(value: Any, restored: Any) -> Parts | None:
    """The parts of two values of one class; None if there are none."""
    match value:
        case datetime() | time():
            return _parts_of_time(value, restored)
        case BaseModel():
            return _parts_of_model(value, restored)
        case Mapping():
            return _parts_of_mapping(value, restored)
        case list() | tuple() | deque():
            return _parts_of_sequence(value, restored)
        case AbstractSet():
            return _parts_of_set(value, restored)
    return _parts_of_dataclass(value, restored) if dataclasses.is_dataclass(value) else None


def _parts_of_time(value: Any, restored: Any) -> Parts:
    # As text: two times in different zones, of which one is repeated or skipped, are never equal.
    yield "", "", value.replace(tzinfo=None).isoformat(), restored.replace(tzinfo=None).isoformat()
    yield ".fold", "", value.fold, restored.fold
    yield ".tzinfo", "", _zone_of(value.tzinfo), _zone_of(restored.tzinfo)


def _zone_of(zone: tzinfo | None) -> object:
    """The name of a zone, else its fixed offset, else the zone itself."""
    if zone is None or isinstance(zone, ZoneInfo):
        return zone and zone.key
    offset = zone.utcoffset(None)
    return zone if offset is None else offset


def _parts_of_model(value: BaseModel, restored: BaseModel) -> Parts:
    yield from _fields(value, restored, type(value).model_fields)
    yield "", "", value.__pydantic_extra__, restored.__pydantic_extra__
    yield "", "", value.__pydantic_private__, restored.__pydantic_private__


def _parts_of_dataclass(value: Any, restored: Any) -> Parts:
    yield from _fields(value, restored, [field.name for field in dataclasses.fields(value)])


def _fields(value: Any, restored: Any, fields: Collection[str]) -> Parts:
    for name in fields:
        yield ".{}", name, getattr(value, name, _MISSING), getattr(restored, name, _MISSING)
    yield from _attributes(value, restored, without=fields)


def _attributes(value: Any, restored: Any, *, without: Collection[str] = ()) -> Parts:
    """What the objects' `__dict__` hold, without cached properties and what `typing` adds."""
    of_value, of_restored = getattr(value, "__dict__", {}), getattr(restored, "__dict__", {})
    for name in (of_value | of_restored).keys() - without:
        declared = inspect.getattr_static(type(value), name, None)
        if name == "__orig_class__" or isinstance(declared, cached_property):
            continue
        yield ".{}", name, of_value.get(name, _MISSING), of_restored.get(name, _MISSING)


def _parts_of_mapping(value: Mapping[Any, Any], restored: Mapping[Any, Any]) -> Parts:
    yield ".__len__()", "", len(value), len(restored)
    if isinstance(value, OrderedDict):
        yield ".keys()", "", list(value), list(restored)
    if isinstance(value, defaultdict):
        yield (
            ".default_factory",
            "",
            value.default_factory,
            getattr(restored, "default_factory", None),
        )
    if not {*map(type, value), *map(type, restored)} <= {str}:
        restored_keys = {key: key for key in restored}
        for key in value:
            yield ".keys()[{!r}]", key, key, restored_keys.get(key, _MISSING)
    for key, part in value.items():
        yield "[{!r}]", key, part, restored.get(key, _MISSING)
    yield from _attributes(value, restored)


def _parts_of_sequence(value: Any, restored: Any) -> Parts:
    yield ".__len__()", "", len(value), len(restored)
    if isinstance(value, deque):
        yield ".maxlen", "", value.maxlen, restored.maxlen
    for index, (part, restored_part) in enumerate(zip(value, restored, strict=True)):
        yield "[{}]", index, part, restored_part
    yield from _attributes(value, restored)


def _parts_of_set(value: AbstractSet[Any], restored: AbstractSet[Any]) -> Parts:
    yield ".__len__()", "", len(value), len(restored)
    restored_items = {item: item for item in restored}
    for item in value:
        yield "[{!r}]", item, item, restored_items.get(item, _MISSING)
    yield from _attributes(value, restored)
