"""JSON schemas changed for constrained decoding: closed, bounded, placed within another schema."""

from __future__ import annotations

from typing import Any

SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)
"""Keywords of JSON Schema with schemas by name: a name in there is no keyword."""

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords with data: a name in there is no keyword."""


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


def bounded_schema(schema: Any, *, characters: int, items: int) -> Any:
    """The schema with limits on the length of texts and lists that have none.

    Texts with a pattern or a format are left as they are: with a limit they might be impossible.
    """
    if isinstance(schema, list):
        return [bounded_schema(part, characters=characters, items=items) for part in schema]
    if not isinstance(schema, dict):
        return schema
    bounded: dict[str, Any] = {}
    for key, part in schema.items():
        if key in SCHEMAS_BY_NAME and isinstance(part, dict):
            bounded[key] = {
                name: bounded_schema(each, characters=characters, items=items)
                for name, each in part.items()
            }
        elif key in DATA:
            bounded[key] = part
        else:
            bounded[key] = bounded_schema(part, characters=characters, items=items)
    if schema.get("type") == "string" and not schema.keys() & {"pattern", "format", "enum"}:
        bounded.setdefault("maxLength", _at_least(schema.get("minLength"), characters))
    if schema.get("type") == "array":
        bounded.setdefault("maxItems", _at_least(schema.get("minItems"), items))
    return bounded


def _at_least(minimum: Any, bound: int) -> int:
    """The bound, or the schema's minimum if that is higher and a number at all."""
    return max(minimum, bound) if isinstance(minimum, int) else bound


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
        elif key in SCHEMAS_BY_NAME and isinstance(part, dict):
            moved[key] = {name: with_references_below(each, root) for name, each in part.items()}
        else:
            moved[key] = part if key in DATA else with_references_below(part, root)
    return moved
