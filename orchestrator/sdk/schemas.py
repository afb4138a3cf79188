"""Structured output: the JSON schema for constrained decoding, and the check of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.generation import Completion

Shape = type[BaseModel] | Mapping[str, Any]

_SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)
_DATA = frozenset({"const", "enum", "default", "examples"})


def json_schema_of(shape: Shape | None) -> Mapping[str, Any] | None:
    """The JSON schema of a shape; None for free text."""
    if isinstance(shape, type):
        closed: Mapping[str, Any] = closed_schema(shape.model_json_schema())
        return closed
    return shape


def answer_in(shape: Shape, completion: Completion) -> Any:
    """The answer as an instance of a pydantic model, or as the value that a JSON schema allows.

    Raises:
        StructuredOutputInvalid: it does not satisfy the schema, usually because it was cut off.
        InvalidRequest: the JSON schema is not valid.
    """
    if isinstance(shape, type):
        try:
            return shape.model_validate_json(completion.text)
        except ValidationError as error:
            raise _invalid(completion, _first_error(error)) from None
    import jsonschema

    value = completion.parsed()
    try:
        jsonschema.validate(value, shape)
    except jsonschema.ValidationError as error:
        raise _invalid(completion, f"{error.json_path}: {error.message}") from None
    except jsonschema.SchemaError as error:
        reason = f"the JSON schema is not valid: {error.message}"
        raise InvalidRequest(completion.request_id, reason) from None
    return value


def closed_schema(schema: Any) -> Any:
    """The schema with `additionalProperties: false` for every object that does not set it.

    Pydantic's schemas allow unknown properties, and its models ignore them: wasted tokens.
    """
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: closed_schema(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def with_references_below(schema: Any, root: str) -> Any:
    """The schema with its references changed for a place within another schema.

    Args:
        root: a pointer to that place, such as "#/$defs/place": `#/$defs/City`, a reference within
            the schema, becomes `#/$defs/place/$defs/City`.
    """
    if isinstance(schema, list):
        return [with_references_below(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, part in schema.items():
        if key == "$ref" and isinstance(part, str) and (part == "#" or part.startswith("#/")):
            moved[key] = root + part[1:]
        elif key in _SCHEMAS_BY_NAME and isinstance(part, dict):
            moved[key] = {name: with_references_below(each, root) for name, each in part.items()}
        else:
            moved[key] = part if key in _DATA else with_references_below(part, root)
    return moved


def _invalid(completion: Completion, reason: str) -> StructuredOutputInvalid:
    return StructuredOutputInvalid(completion.request_id, completion.finish_reason, reason)


def _first_error(error: ValidationError) -> str:
    reason = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in reason["loc"])
    return f"{where}: {reason['msg']}" if where else str(reason["msg"])
