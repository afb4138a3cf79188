"""The JSON schema of a question's answers, and the check of an answer before it is recorded.

The check refuses only what the flow would refuse too. The flow itself has the last word: a type
may demand more than its JSON schema says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from orchestrator.durability.json_schemas import local_validator

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_MAX_CHARACTERS = 300  # of a reason: it may quote the answer

_CONVERTED: Mapping[str, type] = {"integer": int, "number": float, "boolean": bool}
"""JSON types -> those that pydantic also reads from texts, such as "yes" for true."""

_EARLY_VALIDATORS = {"function-before", "function-wrap", "function-plain"}

_FORMATS: Mapping[str, type] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
}


def answer_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON schema of a type; None if it has none, or takes other values than that says.

    A validator of the user's own that runs before pydantic's may take anything.
    """
    try:
        adapter = TypeAdapter(annotation)
        return None if _has_early_validator(adapter.core_schema) else adapter.json_schema()
    except Exception:  # whatever a custom type raises: its answers are checked by the flow alone
        return None


def why_not(schema: Mapping[str, Any] | None, answer: bytes) -> str | None:
    """Why an answer does not fit a schema; None if it does, or if that cannot be told here.

    Args:
        answer: as it is recorded: JSON; a JSON string holds a typed text, which is read as JSON or,
            if that does not fit, as a string.
    """
    if schema is None:
        return None
    try:
        recorded = json.loads(answer)
        if not isinstance(recorded, str) or _is_plain_text(schema):
            return _violation(schema, recorded)
        try:
            read = json.loads(recorded)
        except (ValueError, RecursionError):
            return _violation(schema, recorded)
        as_json = _violation(schema, read)
        # As JSON it was read as a number already: as a text it is only a text.
        is_text = _violation(schema, recorded, converts=False) is None
        return None if is_text else as_json
    except Exception:  # the schema cannot be applied, for example a pattern that Python cannot read
        return None


def _has_early_validator(core_schema: object) -> bool:
    if isinstance(core_schema, Mapping):
        if core_schema.get("type") in _EARLY_VALIDATORS:
            return True
        return any(_has_early_validator(part) for part in core_schema.values())
    if isinstance(core_schema, list | tuple):
        return any(_has_early_validator(part) for part in core_schema)
    return False


def _is_plain_text(schema: Mapping[str, Any]) -> bool:
    """Whether an answer is the typed text itself, never JSON."""
    return schema.get("type") == "string" and schema.keys().isdisjoint({"format", "enum", "const"})


def _violation(schema: Mapping[str, Any], value: object, *, converts: bool = True) -> str | None:
    """The first reason why a value does not satisfy a schema; None: it does.

    Args:
        converts: a value that pydantic would convert to the type fits.
    """
    kind = _validator_classes()[converts]
    validator = local_validator(kind, schema, format_checker=_formats())
    error = next(validator.iter_errors(value), None)
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    reason = f"{where}: {error.message}" if where else error.message
    return reason if len(reason) <= _MAX_CHARACTERS else f"{reason[:_MAX_CHARACTERS]}..."


@cache
def _validator_classes() -> tuple[type[Validator], type[Validator]]:
    """The usual validator, and one that takes what pydantic converts."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    strict = Draft202012Validator.VALIDATORS

    def type_or_convertible(
        validator: Any, types: Any, value: object, schema: Mapping[str, Any]
    ) -> Iterator[Any]:
        kind = _FORMATS.get(schema.get("format", "")) or _CONVERTED.get(str(types))
        if kind is None or not _is_read(kind, value):
            yield from strict["type"](validator, types, value, schema)

    def one_of(validator: Any, values: Any, value: object, schema: Any) -> Iterator[Any]:
        if value not in values:  # as Python compares: true is 1
            yield from strict["enum"](validator, values, value, schema)

    def equal(validator: Any, expected: object, value: object, schema: Any) -> Iterator[Any]:
        if value != expected:
            yield from strict["const"](validator, expected, value, schema)

    def anything(*_: object) -> Iterator[Any]:
        yield from ()

    replaced = {
        "type": type_or_convertible,
        "enum": one_of,
        "const": equal,
        "uniqueItems": anything,  # a list becomes a set
    }
    return Draft202012Validator, extend(Draft202012Validator, replaced)


@cache
def _formats() -> Any:
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    for name, kind in _FORMATS.items():
        checker.checks(name)(partial(_is_read, kind))
    return checker


def _is_read(kind: type, value: object) -> bool:
    """Whether pydantic reads this value as a type."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True
