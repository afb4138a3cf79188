"""Structured output: the JSON schema for constrained decoding, and the check of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from orchestrator.durability.json_schemas import checked_schema, fault_of
from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.generation import Completion
from serving.schema_transforms import DATA, SCHEMAS_BY_NAME, closed_schema

_UNENFORCEABLE = frozenset({"uniqueItems", "propertyNames"})
_FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri".split()  # noqa: SIM905
)
_LOOKAROUND = re.compile(r"\(\?<?[=!]")

MEMBER = "value"
"""The member of a JSON object in which an answer is that is no object itself."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer must look like, and how it is read.

    An answer is always a JSON object, because servers of OpenAI's API accept no other schema. So
    that a run can be resumed on any engine, all are asked for the same: `[1, 2]`, of `list[int]`,
    is written as `{"value": [1, 2]}`. Only a JSON schema is sent as it was given.

    Attributes:
        schema: the JSON schema for constrained decoding.
        reader: reads the answer's JSON; None: the JSON value itself is checked by the schema.
        is_member: whether the answer is the MEMBER of what is read.
    """

    schema: Mapping[str, Any]
    reader: TypeAdapter[Any] | None = None
    is_member: bool = False

    @classmethod
    def of(cls, shape: object) -> AnswerForm:
        """The form of a type that pydantic reads, or of a JSON schema.

        Raises:
            InvalidRequest: it is neither.
        """
        if isinstance(shape, Mapping):
            return cls(shape)
        if isinstance(shape, str):  # pydantic would look for the name among the caller's variables
            raise InvalidRequest(_WHAT, f"schema={shape!r}: give the type itself, not its name")
        try:
            return cls._of_type(shape)
        except Exception as error:  # pydantic's own, and what a type's own hooks raise
            reason = " ".join(str(error).split()) or type(error).__name__
            fault = f"schema={shape!r} is no type that pydantic can read as JSON: {reason}"
            raise InvalidRequest(_WHAT, fault) from error

    @classmethod
    def _of_type(cls, shape: Any) -> AnswerForm:
        reader: TypeAdapter[Any] = TypeAdapter(shape)
        is_model = isinstance(shape, type) and issubclass(shape, BaseModel)
        # A model may define how its schema is made.
        schema = shape.model_json_schema() if is_model else reader.json_schema()
        is_member = not _is_of_objects(schema)
        if is_member:
            fields: dict[str, Any] = {MEMBER: (shape, ...)}
            reader = TypeAdapter(create_model("Answer", **fields))
            schema = reader.json_schema()
        return cls(closed_schema(_enforceable(schema)), reader, is_member)

    def value_in(self, completion: Completion) -> Any:
        """The answer as a value of the type, or as the value that the JSON schema allows.

        Raises:
            StructuredOutputInvalid: it does not satisfy the schema, usually because it was cut
                off.
            InvalidRequest: the JSON schema is not valid.
        """
        if self.reader is None:
            return _checked(completion, self.schema)
        try:
            value = self.reader.validate_json(completion.text)
        except ValidationError as error:
            raise _invalid(completion, _first_error(error)) from None
        return getattr(value, MEMBER) if self.is_member else value


_WHAT = "llm()"


def _is_of_objects(schema: Mapping[str, Any]) -> bool:
    """Whether a schema that pydantic made allows JSON objects only."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    root = schema.get("$defs", {}).get(name, schema)
    return bool(root.get("type") == "object")


def _enforceable(schema: Any) -> Any:
    """The schema without what constrained decoding cannot enforce; the reader checks that."""
    if isinstance(schema, list):
        return [_enforceable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _UNENFORCEABLE or _looks_around(key, part):
            continue
        if key == "format" and part not in _FORMATS:
            continue
        if key in SCHEMAS_BY_NAME and isinstance(part, dict):
            kept[key] = {name: _enforceable(each) for name, each in part.items()}
        else:
            kept[key] = part if key in DATA else _enforceable(part)
    return kept


def _looks_around(key: str, part: object) -> bool:
    return key == "pattern" and isinstance(part, str) and bool(_LOOKAROUND.search(part))


def _checked(completion: Completion, schema: Mapping[str, Any]) -> Any:
    value = completion.parsed()
    try:
        fault = fault_of(checked_schema(schema), value)
    except ValueError as error:
        reason = f"the JSON schema is not valid: {error}"
        raise InvalidRequest(completion.request_id, reason) from None
    if fault is not None:
        raise _invalid(completion, fault)
    return value


def _invalid(completion: Completion, reason: str) -> StructuredOutputInvalid:
    return StructuredOutputInvalid(completion.request_id, completion.finish_reason, reason)


def _first_error(error: ValidationError) -> str:
    reason = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in reason["loc"])
    return f"{where}: {reason['msg']}" if where else str(reason["msg"])
