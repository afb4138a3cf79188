"""The JSON of one type's values: written and read by pydantic."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.plugin._schema_validator import PluggableSchemaValidator
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator
from pydantic_core.core_schema import CoreConfig

from orchestrator.durability.zoned_times import with_zoned_times

# JSON itself has neither infinity nor bytes.
_CONFIG = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")
_CORE_CONFIG = CoreConfig(
    ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64"
)


class JsonForm(NamedTuple):
    """How the values of one type are written as JSON and read."""

    serializer: SchemaSerializer
    validator: SchemaValidator | PluggableSchemaValidator

    @classmethod
    def of(cls, annotation: Any) -> JsonForm:
        """As pydantic itself writes the type; a model's own config takes the place of ours.

        Raises:
            PydanticUserError, PydanticSchemaGenerationError: it does not support the type.
        """
        adapter, _ = _adapter_and_config(annotation)
        return cls(adapter.serializer, adapter.validator)

    @classmethod
    def with_zoned_times(cls, annotation: Any) -> JsonForm:
        """The same, but times keep their zone and fold; raises as `of`."""
        adapter, config = _adapter_and_config(annotation)
        schema = with_zoned_times(adapter.core_schema)
        # Prebuilt serialisers and validators are those of the models' own schemas.
        return cls(
            SchemaSerializer(schema, config, _use_prebuilt=False),
            SchemaValidator(schema, config, _use_prebuilt=False),
        )

    def dump(self, value: Any) -> bytes:
        """The value as JSON; raises what its serialisers raise."""
        try:
            return self.serializer.to_json(value, by_alias=False, round_trip=True)
        except PydanticSerializationError as error:
            if "surrogates" not in str(error):
                raise
        # A lone surrogate cannot be encoded; json.dumps writes it as an ASCII escape.
        document = self.serializer.to_python(value, mode="json", by_alias=False, round_trip=True)
        return json.dumps(document).encode()

    def read(self, data: bytes) -> Any:
        """The value that was written; raises ValidationError if the data does not fit."""
        try:
            return self.validator.validate_json(data, by_alias=True, by_name=True)
        except ValidationError:
            if b"\\ud" not in data:
                raise
        return self.validator.validate_python(json.loads(data), by_alias=True, by_name=True)


def _adapter_and_config(annotation: Any) -> tuple[TypeAdapter[Any], CoreConfig | None]:
    try:
        return TypeAdapter(annotation, config=_CONFIG), _CORE_CONFIG
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    return TypeAdapter(annotation), None
