"""Checks by JSON schemas, which may come from outside: no URL and no file that they name is opened.

jsonschema is imported when the first schema is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def checked_schema(schema: Mapping[str, Any]) -> Validator:
    """The validator of a schema, by the draft that it names; by default the newest.

    Raises:
        ValueError: it is no valid schema; the text says why.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    named = schema.get("$schema")
    if named is not None and not isinstance(named, str):
        raise ValueError(f"$schema is {named!r}; it must be a text")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(error.message) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return local_validator(kind, schema)


def local_validator(kind: type[Validator], schema: Mapping[str, Any], **options: Any) -> Validator:
    """A validator whose references reach the schema itself and the drafts of JSON Schema only."""
    from referencing import Registry

    return kind(schema, registry=Registry(), **options)  # an empty one retrieves nothing


def fault_of(validator: Validator, value: object) -> str | None:
    """Why a value does not satisfy a schema; None: it does.

    Raises:
        ValueError: that cannot be told: the schema refers to what it does not have, or the value or
            the schema goes too deep; the text says which.
    """
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(validator.iter_errors(value))
    except Unresolvable as fault:
        raise ValueError(f"the schema refers to what it does not have: {fault.ref}") from None
    except RecursionError:
        raise ValueError("the value is nested too deep for its schema") from None
    return None if error is None else f"{error.json_path}: {error.message}"
