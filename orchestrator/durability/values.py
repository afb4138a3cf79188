"""Results of steps and arguments of runs as JSON, and back, by the function's annotations.

A replayed step must return the value that it returned before, or a resumed run would diverge from
the interrupted one. So a value that would not survive the round trip is refused when it is
recorded, not when it is read.
"""

from __future__ import annotations

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, ValidationError
from pydantic_core import PydanticSerializationError

from orchestrator.durability.callables import underlying
from orchestrator.durability.json_form import JsonForm
from orchestrator.durability.value_comparison import first_difference
from orchestrator.errors import ResultNotSerialisable, ResultUnreadable

_ZONE_OR_FOLD = re.compile(rb'\]"')
"""How a time ends that has the zoned form."""


class ValueCodec:
    """Converts the values of one type to bytes and back.

    Args:
        what: describes the values in errors, such as "step research".
        annotation: their type; Any: only what JSON itself represents.
    """

    def __init__(self, what: str, annotation: Any = Any) -> None:
        self._what = what
        self._annotation = annotation

    def round_trip(self, value: Any) -> tuple[bytes, Any]:
        """The value as JSON, and the value as a resumed run would read it from there.

        The first execution continues with the latter too, so that all executions have the same
        value: a 3 annotated as float is 3.0 in each.

        Raises:
            ResultNotSerialisable: JSON cannot hold the value, or would return one of another type
                or with other content (see `first_difference`).
        """
        if value is None and self._annotation in (None, type(None), Any):
            return b"null", None
        try:
            data, restored = self._written_and_read(value, self._form)
            difference = first_difference(value, restored)
            if difference is not None:
                data, restored = self._written_and_read(value, self._zoned_form)
                difference = first_difference(value, restored)
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
        if difference is not None:
            raise ResultNotSerialisable(self._what, difference)
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

    def require_supported_type(self) -> None:
        """Raise ResultNotSerialisable if pydantic does not support the type."""
        assert self._form

    def _written_and_read(self, value: Any, form: JsonForm) -> tuple[bytes, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = form.dump(value)
        return data, self._read(data)

    def _read(self, data: bytes) -> Any:
        try:
            return self._form.read(data)
        except ValidationError:
            if not _ZONE_OR_FOLD.search(data):
                raise
        return self._zoned_form.read(data)

    @cached_property
    def _form(self) -> JsonForm:
        """The JSON of values that have no time with a named zone or a fold."""
        try:
            return JsonForm.of(self._annotation)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ResultNotSerialisable(self._what, _line(error)) from error

    @cached_property
    def _zoned_form(self) -> JsonForm:
        """The JSON of the other values; former versions cannot read it."""
        return JsonForm.with_zoned_times(self._annotation)


@lru_cache(maxsize=1024)
def result_codec(function: Callable[..., Any], what: str) -> ValueCodec:
    """The codec for what a function returns, by its annotation."""
    annotation = hints_of(function).get("return", Any)
    return ValueCodec(what, annotation)


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's annotations with their names resolved, without those that do not resolve.

    Args:
        function: also a partial, which has those of its function, an object with `__call__`, or a
            class, which returns itself.
    """
    body = inspect.unwrap(underlying(inspect.unwrap(function)))
    plain: Any = body.__init__ if inspect.isclass(body) else body
    names = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in getattr(plain, "__annotations__", {}).items():
        single = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(single, globalns=names, include_extras=True)
        except Exception:  # noqa: S112 - such as a name imported under TYPE_CHECKING only
            continue
    return hints | {"return": body} if inspect.isclass(body) else hints


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
