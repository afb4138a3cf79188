"""Converts the states of graphs to bytes, for runs in which a graph is a step."""

from __future__ import annotations

import base64
import json
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from orchestrator.durability.value_comparison import first_difference
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import ResultNotSerialisable, ResultUnreadable


class StateCodec(ValueCodec):
    """Uses the serialiser of LangGraph's checkpointers, without pickle."""

    def __init__(self) -> None:
        super().__init__("a graph")
        self._serialiser = JsonPlusSerializer()

    def round_trip(self, value: Any) -> tuple[bytes, Any]:
        """The state as JSON, and as it is read back; raises ResultNotSerialisable."""
        data = self._dumped(value)
        restored = self.load(data)
        difference = first_difference(value, restored)
        if difference is not None and self._dumped(restored) != data:
            raise ResultNotSerialisable("a graph", f"of its state, {difference}")
        return data, restored

    def _dumped(self, value: Any) -> bytes:
        try:
            kind, data = self._serialiser.dumps_typed(value)
        except Exception as error:
            raise ResultNotSerialisable("a graph", str(error)) from error
        return json.dumps([kind, base64.b64encode(data).decode()]).encode()

    def load(self, data: bytes) -> Any:
        """The state that was dumped; raises ResultUnreadable."""
        try:
            kind, text = json.loads(data)
            return self._serialiser.loads_typed((kind, base64.b64decode(text)))
        except Exception as error:
            raise ResultUnreadable("a graph", str(error)) from error


STATE = StateCodec()
