"""The smallest answers that satisfy a JSON schema, as by constrained decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fitting_answer(schema: Mapping[str, Any] | None, *, text: str = "as the passage says ") -> Any:
    """A JSON value that satisfies a schema of the kinds that our models use.

    Args:
        text: repeated or cut to the length of each string.
    """
    assert schema is not None, "the request asks for no JSON"
    return _fitting(schema, schema.get("$defs", {}), text)


def _fitting(schema: Mapping[str, Any], definitions: Mapping[str, Any], text: str) -> Any:
    if "$ref" in schema:
        return _fitting(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, text)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _fitting(schema["anyOf"][0], definitions, text)
    match schema["type"]:
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _fitting(properties[name], definitions, text)
                for name in schema.get("required", ())
            }
        case "array":
            count = max(1, schema.get("minItems", 0))
            return [_fitting(schema["items"], definitions, text)] * count
        case "string":
            return _string(schema.get("minLength", 1), schema.get("maxLength", 200), text)
        case "boolean":
            return True
        case "integer" | "number":
            return schema.get("minimum", 1)
    return None


def _string(shortest: int, longest: int, text: str) -> str:
    return (text * (shortest // len(text) + 1))[:longest]
