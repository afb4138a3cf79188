"""A graph's stream: the chunks that its user asked for, and the state so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from langgraph.types import GraphOutput, Interrupt

INTERRUPT = "__interrupt__"

_VALUES = "values"


class GraphStream:
    """Adds the mode "values" to a graph's stream to learn its state, and filters it out again.

    Args:
        modes: what the user asked for, as LangGraph's `stream_mode`.
        subgraphs, version: the options of the same name of LangGraph's `stream`.
    """

    def __init__(self, modes: str | Sequence[str], *, subgraphs: bool, version: str) -> None:
        self._is_single = isinstance(modes, str)
        self._requested = [modes] if isinstance(modes, str) else list(modes)
        self._subgraphs = subgraphs
        self._version = version
        self._state: Any = None
        self._tasks: dict[str, Any] = {}

    @property
    def modes(self) -> list[str]:
        """The modes to ask the graph for."""
        return self._requested if _VALUES in self._requested else [*self._requested, _VALUES]

    @property
    def state(self) -> Any:
        """The last known state; None before the first.

        A functional graph streams no state before its end: for it, the results of its tasks so far
        by their names.
        """
        if self._state is not None:
            return self._state
        return dict(self._tasks) or None

    def accept(self, chunk: Any) -> Iterator[Any]:
        """Process a chunk; yields it in the user's format if its mode was requested."""
        mode, namespace, payload = self._parts(chunk)
        if not namespace:
            self._update_state(mode, payload)
        if mode not in self._requested:
            return
        if self._version == "v2" or not self._is_single:
            yield chunk
        else:
            yield (namespace, payload) if self._subgraphs else payload

    def final_chunk(self, value: Any) -> Any:
        """The result of `wrap_up` as the last chunk of the stream."""
        mode = _VALUES if _VALUES in self._requested else self._requested[0]
        payload = value if mode == _VALUES else {"wrap_up": value}
        if self._version == "v2":
            return {"type": mode, "ns": (), "data": payload}
        if not self._is_single:
            return ((), mode, payload) if self._subgraphs else (mode, payload)
        return ((), payload) if self._subgraphs else payload

    def _parts(self, chunk: Any) -> tuple[str, tuple[str, ...], Any]:
        if self._version == "v2":
            return chunk["type"], chunk["ns"], chunk["data"]
        if self._subgraphs:
            namespace, mode, payload = chunk
            return mode, namespace, payload
        mode, payload = chunk
        return mode, (), payload

    def _update_state(self, mode: str, payload: Any) -> None:
        if mode == _VALUES:
            state = payload
            if isinstance(payload, Mapping) and INTERRUPT in payload:
                state = {name: value for name, value in payload.items() if name != INTERRUPT}
            is_empty = isinstance(state, Mapping) and not state
            self._state = self._state if is_empty else state
        elif mode == "updates" and isinstance(payload, Mapping):
            self._tasks |= {name: value for name, value in payload.items() if name != INTERRUPT}


class GraphResult:
    """The result of a graph's `invoke`, assembled from its stream as LangGraph does it.

    The stream is asked for the whole state, not only for the output: `wrap_up` may need it.

    Args:
        graph: a Pregel; its `output_channels` and `stream_channels_list` are read.
        options: of `invoke`; changed in place to those of `stream`.
    """

    def __init__(self, graph: Any, options: MutableMapping[str, Any]) -> None:
        self._mode = options.pop("stream_mode", _VALUES)
        self._version = options.get("version", "v1")
        self._keys: Sequence[str] | None = None
        self._value: Any = None
        self._chunks: list[Any] = []
        self._interrupts: list[Interrupt] = []
        if options.get("output_keys") is None:
            output = graph.output_channels
            can_select = self._mode == _VALUES and self._version == "v1"
            if can_select and _is_subset(output, graph.stream_channels_list):
                self._keys = list(output)
            else:
                options["output_keys"] = output
        options["stream_mode"] = self._mode
        if self._mode == _VALUES and self._version == "v1":
            options["stream_mode"] = ["updates", _VALUES]

    def add(self, chunk: Any) -> None:
        """Add the next chunk of the stream."""
        if self._mode != _VALUES:
            self._chunks.append(chunk)
        elif self._version == "v2":
            self._value = chunk["data"]
            self._interrupts.extend(chunk.get("interrupts", ()))
        else:
            mode, payload = chunk[-2:]
            if mode == _VALUES:
                self._value = payload
            elif isinstance(payload, Mapping) and INTERRUPT in payload:
                self._interrupts.extend(payload[INTERRUPT])

    def value(self) -> Any:
        """The result of `invoke`."""
        if self._mode != _VALUES:
            return self._chunks
        if self._version == "v2":
            return GraphOutput(value=self._value, interrupts=tuple(self._interrupts))
        output = self.output_of(self._value)
        if not self._interrupts:
            return output
        return {**(output if isinstance(output, dict) else {}), INTERRUPT: self._interrupts}

    def output_of(self, state: Any) -> Any:
        """The part of a state that is the graph's output."""
        if self._keys is None or not isinstance(state, Mapping):
            return state
        return {key: state[key] for key in self._keys if key in state}


def _is_subset(output: str | Sequence[str], state: Sequence[str]) -> bool:
    return not isinstance(output, str) and set(output) <= set(state)
