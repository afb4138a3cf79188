"""JSON schemas as a model should be held to them."""

from __future__ import annotations

from typing import Any


def closed_schema(schema: Any) -> Any:
    """The schema with every object closed to properties that it does not name.

    Pydantic leaves objects open, and ignores what it does not know: tokens spent for nothing.
    """
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: closed_schema(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
