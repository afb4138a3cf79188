"""What something was called with, as a few bytes that are the same in every process."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from blake3 import blake3
from pydantic import BaseModel

NUM_BYTES = 8


def digest_of(*values: object) -> bytes | None:
    """A digest of what the values say; of what only a process can tell apart, of its class alone.

    None for what has no end, or is a table by other keys than plain ones: nothing is compared then.
    """
    try:
        told = json.dumps(values, default=_told)
    except (TypeError, ValueError, RecursionError):
        return None
    return blake3(told.encode()).digest(NUM_BYTES)


def _told(value: Any) -> object:
    """What json has no word for, by what it has."""
    kind = type(value).__qualname__
    if isinstance(value, set | frozenset):  # has another order in every process
        return [kind, sorted(json.dumps(each, default=_told) for each in value)]
    if isinstance(value, bytes | bytearray):
        return [kind, blake3(bytes(value)).hexdigest()]
    if isinstance(value, BaseModel):
        return [kind, value.__dict__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        compared = [field.name for field in dataclasses.fields(value) if field.compare]
        return [kind, {name: getattr(value, name, None) for name in compared}]
    shown = repr(value)
    return kind if callable(value) or " at 0x" in shown else [kind, shown]
