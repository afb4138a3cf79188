"""Results of steps and arguments of runs as bytes, and back: JSON, by the function's annotations.

What a step returned must come back as it was, or a resumed run would not be the run that it
continues. So a value whose way back is not known is refused when it is recorded, not when it is
needed.
"""

from __future__ import annotations

import inspect
import json
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from orchestrator.errors import ResultNotSerialisable, ResultUnreadable

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

    def dump(self, value: Any) -> bytes:
        """The value as JSON.

        Raises:
            ResultNotSerialisable: JSON cannot hold it, or would give something else back.
        """
        if value is None and self._annotation in (None, type(None), Any):
            return b"null"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                data = self._dumped(value)
            if self._annotation is Any and not _is_plain(value):
                raise TypeError("JSON alone cannot tell what it was: annotate the return type")
        except (
            PydanticSerializationError,
            PydanticUserError,
            TypeError,
            ValueError,
            Warning,
            RecursionError,
        ) as error:
            raise ResultNotSerialisable(self._what, _line(error)) from error
        return data

    def load(self, data: bytes) -> Any:
        """The value that was dumped.

        Raises:
            ResultUnreadable: the bytes are no value of this type, as after a change of the code.
        """
        try:
            return self._known().validate_json(data)
        except (ValidationError, ValueError) as error:
            raise ResultUnreadable(self._what, _line(error)) from error

    def _dumped(self, value: Any) -> bytes:
        adapter = self._known()
        try:
            return adapter.dump_json(value)
        except PydanticSerializationError as error:
            if "surrogates" not in str(error):
                raise
        # A lone surrogate, which no encoding takes, must not cost the whole value.
        text = json.dumps(adapter.dump_python(value, mode="json"), ensure_ascii=False)
        return text.encode(errors="replace")

    def _known(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            try:
                self._adapter = TypeAdapter(self._annotation)
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                raise ResultNotSerialisable(self._what, _line(error)) from error
        return self._adapter


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


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
