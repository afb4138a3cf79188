"""Results of steps and arguments of runs as JSON, and back, by the function's annotations.

A replayed step must return the value that it returned before, or a resumed run would diverge from
the interrupted one. So a value that would not survive the round trip is refused when it is
recorded, not when it is read.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from pydantic import (
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from orchestrator.errors import ResultNotSerialisable, ResultUnreadable

# JSON itself has neither infinity nor bytes.
_CONFIG = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")

_PLAIN = (str, int, float, bool, type(None))


class ValueCodec:
    """Converts the values of one type to bytes and back.

    Args:
        what: describes the values in errors, such as "step research".
        annotation: their type; Any: only what JSON itself represents.
    """

    def __init__(self, what: str, annotation: Any = Any) -> None:
        self._what = what
        self._annotation = annotation
        self._adapter: TypeAdapter[Any] | None = None

    def round_trip(self, value: Any) -> tuple[bytes, Any]:
        """The value as JSON, and the value as a resumed run would read it from there.

        The first execution continues with the latter too, so that all executions have the same
        value: a 3 annotated as float is 3.0 in each.

        Raises:
            ResultNotSerialisable: JSON cannot hold the value, or would return another one.
        """
        if value is None and self._annotation in (None, type(None), Any):
            return b"null", None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                data = self._dumped(value)
            if self._annotation is Any and not _is_plain(value):
                raise TypeError("its type cannot be told from JSON: annotate the return type")
            restored = self._read(data)
            if not is_same(value, restored):
                raise ValueError("reading it back gives another value")
        except ResultNotSerialisable:
            raise
        except (
            PydanticSerializationError,
            PydanticUserError,
            TypeError,
            ValueError,
            Warning,
            RecursionError,
        ) as error:
            raise ResultNotSerialisable(self._what, _line(error)) from error
        return data, restored

    def dump(self, value: Any) -> bytes:
        """The value as JSON; raises as `round_trip`."""
        return self.round_trip(value)[0]

    def load(self, data: bytes) -> Any:
        """The value that was dumped.

        Raises:
            ResultUnreadable: the bytes do not fit this type; it may have changed since.
        """
        try:
            return self._read(data)
        except (ValidationError, ValueError) as error:
            raise ResultUnreadable(self._what, _line(error)) from error

    def _dumped(self, value: Any) -> bytes:
        adapter = self._type_adapter()
        try:
            return adapter.dump_json(value, by_alias=False, round_trip=True)
        except PydanticSerializationError as error:
            if "surrogates" not in str(error):
                raise
        # A lone surrogate cannot be encoded; json.dumps writes it as an ASCII escape.
        document = adapter.dump_python(value, mode="json", by_alias=False, round_trip=True)
        return json.dumps(document).encode()

    def _read(self, data: bytes) -> Any:
        adapter = self._type_adapter()
        try:
            return adapter.validate_json(data, by_alias=True, by_name=True)
        except ValidationError:
            if b"\\ud" not in data:
                raise
        return adapter.validate_python(json.loads(data), by_alias=True, by_name=True)

    def _type_adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            try:
                self._adapter = _adapter_of(self._annotation)
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                raise ResultNotSerialisable(self._what, _line(error)) from error
        return self._adapter


def _adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Pydantic's adapter for a type; a model's own config takes the place of ours."""
    try:
        return TypeAdapter(annotation, config=_CONFIG)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    return TypeAdapter(annotation)


@lru_cache(maxsize=1024)
def result_codec(function: Callable[..., Any], what: str) -> ValueCodec:
    """The codec for what a function returns, by its annotation."""
    annotation = hints_of(function).get("return", Any)
    return ValueCodec(what, annotation)


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's annotations with their names resolved, without those that do not resolve."""
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in getattr(plain, "__annotations__", {}).items():
        single = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(single, globalns=names, include_extras=True)
        except Exception:  # noqa: S112 - such as a name imported under TYPE_CHECKING only
            continue
    return hints


def _is_plain(value: Any) -> bool:
    """Whether a value survives JSON unchanged without knowing its type."""
    if type(value) in _PLAIN:
        return True
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return False


def is_same(first: Any, second: Any) -> bool:
    """Whether two values are equal, where NaN counts as equal to NaN, also within other values.

    Values that define no equality, or that raise when compared, are the same if of one class.
    """
    if isinstance(first, float) and isinstance(second, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    compare: Any = type(first).__eq__
    if compare is object.__eq__ and not is_dataclass(first):
        return type(first) is type(second)
    try:
        if first == second:
            return True
    except Exception:
        return type(first) is type(second)
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        if first.keys() != second.keys():
            return False
        return all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    first_fields, second_fields = getattr(first, "__dict__", {}), getattr(second, "__dict__", {})
    if first_fields == second_fields:
        return compare is object.__eq__
    return is_same(first_fields, second_fields)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
