"""States of graphs as bytes, for the record of a run in which a graph is a step."""

from __future__ import annotations

import base64
import json
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from orchestrator.durability.values import ValueCodec, is_same
from orchestrator.errors import ResultNotSerialisable, ResultUnreadable


class StateCodec(ValueCodec):
    """By LangGraph's own serialiser, which its checkpointers use; without pickle."""

    def __init__(self) -> None:
        super().__init__("a graph")
        self._serialiser = JsonPlusSerializer()

    def kept(self, value: Any) -> tuple[bytes, Any]:
        """As JSON, and as it comes back; raises ResultNotSerialisable."""
        data = self._dumped(value)
        again = self.load(data)
        if not is_same(value, again) and self._dumped(again) != data:
            raise ResultNotSerialisable("a graph", "its state would not come back as it was")
        return data, again

    def _dumped(self, value: Any) -> bytes:
        try:
            kind, data = self._serialiser.dumps_typed(value)
        except Exception as error:
            raise ResultNotSerialisable("a graph", str(error)) from error
        return json.dumps([kind, base64.b64encode(data).decode()]).encode()

    def load(self, data: bytes) -> Any:
        """What was dumped; raises ResultUnreadable."""
        try:
            kind, text = json.loads(data)
            return self._serialiser.loads_typed((kind, base64.b64decode(text)))
        except Exception as error:
            raise ResultUnreadable("a graph", str(error)) from error


STATE = StateCodec()
