"""Times as text that keeps the name of their zone and their fold, as RFC 9557 writes them.

ISO 8601, which pydantic writes, has only an offset: a day later, over a change of clocks, the same
zone has another one. `2026-10-25T02:30:00+01:00[Europe/Berlin][_fold=1]` has all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic_core import CoreSchema, core_schema

_TEXT = re.compile(r"(?P<time>[^\[]+)(\[(?P<zone>[^\]=]+)\])?(?P<fold>\[_fold=1\])?")

_NOT_SCHEMAS = frozenset({"config", "default", "expected", "members", "metadata"})
"""Keys of a core schema's nodes that hold users' objects."""


def with_zoned_times(schema: CoreSchema) -> CoreSchema:
    """The same schema, which writes and reads `datetime` and `time` with their zone and fold.

    Those for which a type has a serialiser of its own are left to it.
    """
    rebuilt: CoreSchema = _rebuilt(schema)
    return rebuilt


def _rebuilt(node: Any) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(map(_rebuilt, node))
    if not isinstance(node, Mapping):  # of a type that is not complete yet: no dict
        return node
    kind = node.get("type")  # a text in a node; fields and choices by name are no nodes
    rebuilt = {
        key: part if isinstance(kind, str) and key in _NOT_SCHEMAS else _rebuilt(part)
        for key, part in node.items()
    }
    if kind in ("datetime", "time") and "serialization" not in node:
        return _with_zone(rebuilt)
    return rebuilt


def _with_zone(schema: Any) -> CoreSchema:
    ref = schema.pop("ref", None)
    return core_schema.no_info_wrap_validator_function(
        _read,
        schema,
        ref=ref,
        serialization=core_schema.wrap_serializer_function_ser_schema(
            _written, schema=schema, when_used="json"
        ),
    )


def _written(value: Any, write: Callable[[Any], Any]) -> Any:
    text = write(value)
    if not isinstance(text, str) or not isinstance(value, datetime | time):
        return text
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return text + (f"[{zone}]" if zone else "") + ("[_fold=1]" if value.fold else "")


def _read(text: Any, read: Callable[[Any], Any]) -> Any:
    parts = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if parts is None:
        return read(text)
    value = read(parts["time"])
    try:
        zone = ZoneInfo(parts["zone"]) if parts["zone"] else value.tzinfo
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"this machine does not know the zone {parts['zone']}") from error
    return value.replace(tzinfo=zone, fold=1 if parts["fold"] else 0)
