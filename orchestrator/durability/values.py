"""Results of steps and arguments of runs as bytes, and back: JSON, by the function's annotations.

What a step returned must come back as it was, or a resumed run would not be the run that it
continues. So a value whose way back is not known is refused when it is recorded, not when it is
needed.
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

# JSON has no word for infinity, and none for bytes that are no text.
_LENT = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")

_PLAIN = (str, int, float, bool, type(None))


class ValueCodec:
    """A type's values as bytes.

    Args:
        what: says whose values these are, in errors.
        annotation: their type; Any: what JSON itself can say.
    """

    def __init__(self, what: str, annotation: Any = Any) -> None:
        self._what = what
        self._annotation = annotation
        self._adapter: TypeAdapter[Any] | None = None

    def kept(self, value: Any) -> tuple[bytes, Any]:
        """The value as JSON, and as it comes back from there.

        That is what the code goes on with, the first time as well: a 3 that is to be a float is
        3.0 in every execution.

        Raises:
            ResultNotSerialisable: JSON cannot hold it, or would give something else back.
        """
        if value is None and self._annotation in (None, type(None), Any):
            return b"null", None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                data = self._dumped(value)
            if self._annotation is Any and not _is_plain(value):
                raise TypeError("JSON alone cannot tell what it was: annotate the return type")
            again = self._read(data)
            if not is_same(value, again):
                raise ValueError("it would not come back as it was")
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
        return data, again

    def dump(self, value: Any) -> bytes:
        """The value as JSON; raises as `kept`."""
        return self.kept(value)[0]

    def load(self, data: bytes) -> Any:
        """The value that was dumped.

        Raises:
            ResultUnreadable: the bytes are no value of this type, as after a change of the code.
        """
        try:
            return self._read(data)
        except (ValidationError, ValueError) as error:
            raise ResultUnreadable(self._what, _line(error)) from error

    def _dumped(self, value: Any) -> bytes:
        adapter = self._known()
        try:
            return adapter.dump_json(value, by_alias=False, round_trip=True)
        except PydanticSerializationError as error:
            if "surrogates" not in str(error):
                raise
        # A lone surrogate has no encoding, and as an escape it needs none.
        told = adapter.dump_python(value, mode="json", by_alias=False, round_trip=True)
        return json.dumps(told).encode()

    def _read(self, data: bytes) -> Any:
        adapter = self._known()
        try:
            return adapter.validate_json(data, by_alias=True, by_name=True)
        except ValidationError:
            if b"\\ud" not in data:
                raise
        return adapter.validate_python(json.loads(data), by_alias=True, by_name=True)

    def _known(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            try:
                self._adapter = _adapter_of(self._annotation)
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                raise ResultNotSerialisable(self._what, _line(error)) from error
        return self._adapter


def _adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Knows how a type is written; for a model that is what it says itself."""
    try:
        return TypeAdapter(annotation, config=_LENT)
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
    """A function's annotations with their names resolved; those that cannot be are left out."""
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(plain, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(alone, globalns=names, include_extras=True)
        except Exception:  # noqa: S112 - a name that only type checkers know
            continue
    return found


def _is_plain(value: Any) -> bool:
    """Whether JSON gives the value back as it is."""
    if type(value) in _PLAIN:
        return True
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    return False


def is_same(one: Any, other: Any) -> bool:
    """Whether a value is what another one was: equal, or holding the same where NaN forbids that.

    Of a class whose values cannot be compared none is found to differ.
    """
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    compare: Any = type(one).__eq__
    if compare is object.__eq__ and not is_dataclass(one):
        return type(one) is type(other)
    try:
        if one == other:
            return True
    except Exception:
        return type(one) is type(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    held, kept = getattr(one, "__dict__", {}), getattr(other, "__dict__", {})
    if held == kept:
        return compare is object.__eq__
    return is_same(held, kept)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
