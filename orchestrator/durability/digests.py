"""What something was called with, as a few bytes that are the same in every process."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from blake3 import blake3
from pydantic import BaseModel

NUM_BYTES = 8

_WORDS = (date, time, timedelta, tzinfo, Decimal, Enum, Fraction, PurePath, UUID, complex, range)
"""Values that say all that they are as text; a datetime is a date."""


def digest_of(*values: object) -> bytes | None:
    """A digest of what the values say; of what says nothing that lasts, of its class alone.

    None for what has no end, is a table by other keys than plain ones, or cannot be read: nothing
    is compared then.
    """
    try:
        told = json.dumps(values, default=_told)
    except Exception:  # whatever the values' own code raises
        return None
    return blake3(told.encode()).digest(NUM_BYTES)


class CallDigest:
    """Digests of the calls of a function: the same however the arguments are given.

    An instance whose method it is is none of them: what it holds may be another each time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # a built-in that does not tell
            self._signature = None

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes | None:
        """As `digest_of`; what is given as it is by default anyway is left out."""
        if self._signature is None:
            return digest_of(args, kwargs)
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError:  # which the call itself says better
            return digest_of(args, kwargs)
        parameters = self._signature.parameters
        return digest_of(
            [
                (name, value)
                for name, value in given.items()
                if name != "self" and value is not parameters[name].default
            ]
        )


def _told(value: Any) -> object:
    """What json has no word for, by what it has."""
    kind = type(value).__qualname__
    if isinstance(value, set | frozenset):  # has another order in every process
        return [kind, sorted(json.dumps(each, default=_told) for each in value)]
    if isinstance(value, bytes | bytearray):
        return [kind, blake3(bytes(value)).hexdigest()]
    if isinstance(value, BaseModel):
        return [kind.partition("[")[0], value.__dict__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        compared = [field.name for field in dataclasses.fields(value) if field.compare]
        return [kind, {name: getattr(value, name, None) for name in compared}]
    if isinstance(value, _WORDS):
        return [kind, str(value)]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array, or a number like one
        return [kind, str(value.dtype), blake3(value.tobytes()).hexdigest()]
    return kind
