"""Digests of call arguments: a few bytes that are the same in every process."""

from __future__ import annotations

import dataclasses
import functools
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

from orchestrator.durability.callables import applied

NUM_BYTES = 8

_DESCRIBED_BY_STR = (
    date,
    time,
    timedelta,
    tzinfo,
    Decimal,
    Enum,
    Fraction,
    PurePath,
    UUID,
    complex,
    range,
)
"""Types of values that `str` shows completely; datetime is a subclass of date."""


def digest_of(*values: object) -> bytes | None:
    """A digest of the values' content, NUM_BYTES long.

    A value with unknown content, such as an instance of a plain class, counts by its class name
    alone. None if a value is circular, is a dict with keys that JSON does not allow, or raises
    while it is read: such calls are not compared.
    """
    try:
        text = json.dumps(values, default=_describe)
    except Exception:  # whatever the values' own code raises
        return None
    return blake3(text.encode()).digest(NUM_BYTES)


class CallDigest:
    """Digests of the calls of one function, equal for positional and keyword arguments.

    The `self` of a method is left out: its content may differ in each execution.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        try:
            plain, _, _ = applied(function, (), {})
            self._signature: inspect.Signature | None = inspect.signature(plain)
        except (TypeError, ValueError):  # a built-in without a signature
            self._signature = None

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes | None:
        """The digest of one call, as `digest_of`; an argument that is the default is left out.

        A partial's own arguments count like those of the call.
        """
        _, args, kwargs = applied(self._function, args, kwargs)
        if self._signature is None:
            return digest_of(args, kwargs)
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError:  # the call itself will raise a clearer error
            return digest_of(args, kwargs)
        parameters = self._signature.parameters
        return digest_of(
            [
                (name, value)
                for name, value in given.items()
                if name != "self" and value is not parameters[name].default
            ]
        )


def _describe(value: Any) -> object:
    """The JSON form of a value that JSON does not know; its class name if nothing better."""
    kind = type(value).__qualname__
    if isinstance(value, functools.partial):
        return [kind, value.func, value.args, value.keywords]
    if isinstance(value, set | frozenset):  # its order differs between processes
        return [kind, sorted(json.dumps(each, default=_describe) for each in value)]
    if isinstance(value, bytes | bytearray):
        return [kind, blake3(bytes(value)).hexdigest()]
    if isinstance(value, BaseModel):
        return [kind.partition("[")[0], value.__dict__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [kind, _fields_of(value)]
    if isinstance(value, _DESCRIBED_BY_STR):
        return [kind, str(value)]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array, or a number like one
        return [kind, str(value.dtype), blake3(value.tobytes()).hexdigest()]
    return kind


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that count: see `serving.generation.UNLESS_DEFAULT`."""
    shown = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name, None)
        is_left_out = field.metadata.get("in_digest") == "unless default"
        if field.compare and not (is_left_out and content == field.default):
            shown[field.name] = content
    return shown
