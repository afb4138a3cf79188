"""Answers in a given shape: the JSON schema that a model is held to, and the check of what came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.generation import Completion

Shape = type[BaseModel] | Mapping[str, Any]


def json_schema_of(shape: Shape | None) -> Mapping[str, Any] | None:
    """The JSON schema of a shape; None for free text."""
    if isinstance(shape, type):
        closed: Mapping[str, Any] = closed_schema(shape.model_json_schema())
        return closed
    return shape


def answer_in(shape: Shape, completion: Completion) -> Any:
    """The answer as an instance of a pydantic model, or as the value that a JSON schema allows.

    Raises:
        StructuredOutputInvalid: it is not of that shape, mostly because it was cut.
        InvalidRequest: the JSON schema is none.
    """
    if isinstance(shape, type):
        try:
            return shape.model_validate_json(completion.text)
        except ValidationError as error:
            raise _invalid(completion, _first_complaint(error)) from None
    import jsonschema

    value = completion.parsed()
    try:
        jsonschema.validate(value, shape)
    except jsonschema.ValidationError as error:
        raise _invalid(completion, f"{error.json_path}: {error.message}") from None
    except jsonschema.SchemaError as error:
        raise InvalidRequest(completion.request_id, f"no JSON schema: {error.message}") from None
    return value


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


def _invalid(completion: Completion, complaint: str) -> StructuredOutputInvalid:
    return StructuredOutputInvalid(completion.request_id, completion.finish_reason, complaint)


def _first_complaint(error: ValidationError) -> str:
    complaint = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in complaint["loc"])
    return f"{where}: {complaint['msg']}" if where else str(complaint["msg"])
