"""What a graph streams: what its user asked for, and the state that it has come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from langgraph.types import GraphOutput, Interrupt

INTERRUPT = "__interrupt__"

_VALUES = "values"


class GraphStream:
    """A graph's stream, widened by the values of its state, and narrowed again for its user.

    Args:
        modes: what the user asked for, as LangGraph's `stream_mode`.
        subgraphs, version: as LangGraph has them.
    """

    def __init__(self, modes: str | Sequence[str], *, subgraphs: bool, version: str) -> None:
        self._one = modes if isinstance(modes, str) else None
        self._asked = [modes] if isinstance(modes, str) else list(modes)
        self._subgraphs = subgraphs
        self._version = version
        self._state: Any = None
        self._tasks: dict[str, Any] = {}

    @property
    def modes(self) -> list[str]:
        """What to ask the graph for."""
        return self._asked if _VALUES in self._asked else [*self._asked, _VALUES]

    @property
    def state(self) -> Any:
        """The last known values of the state; of a functional graph, which tells none before its
        end, the results of its tasks so far by their names; None before either."""
        if self._state is not None:
            return self._state
        return dict(self._tasks) or None

    def seen(self, chunk: Any) -> Iterator[Any]:
        """Take a chunk of the widened stream; yields it as the user asked for it, if so."""
        mode, namespace, payload = self._parts(chunk)
        if not namespace:
            self._learn(mode, payload)
        if mode not in self._asked:
            return
        if self._version == "v2" or self._one is None:
            yield chunk
        else:
            yield (namespace, payload) if self._subgraphs else payload

    def last(self, value: Any) -> Any:
        """A result that did not come from the graph, as the last chunk of its stream."""
        mode = _VALUES if _VALUES in self._asked else self._asked[0]
        payload = value if mode == _VALUES else {"wrap_up": value}
        if self._version == "v2":
            return {"type": mode, "ns": (), "data": payload}
        if self._one is None:
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

    def _learn(self, mode: str, payload: Any) -> None:
        if mode == _VALUES:
            known = payload
            if isinstance(payload, Mapping) and INTERRUPT in payload:
                known = {name: each for name, each in payload.items() if name != INTERRUPT}
            is_empty = isinstance(known, Mapping) and not known
            self._state = self._state if is_empty else known
        elif mode == "updates" and isinstance(payload, Mapping):
            self._tasks |= {name: each for name, each in payload.items() if name != INTERRUPT}


class GraphResult:
    """What `invoke` of a graph returns, put together from its stream as LangGraph does it.

    The stream is asked for all of the state, not only for the output: whoever wraps up may need
    it.

    Args:
        graph: a Pregel, of which `output_channels` and `stream_channels_list` are looked at.
        options: of the invocation; changed to those of the stream.
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
            is_known = self._mode == _VALUES and self._version == "v1"
            if is_known and _lie_in(output, graph.stream_channels_list):
                self._keys = list(output)
            else:
                options["output_keys"] = output
        options["stream_mode"] = self._mode
        if self._mode == _VALUES and self._version == "v1":
            options["stream_mode"] = ["updates", _VALUES]

    def take(self, chunk: Any) -> None:
        """The next chunk of the stream."""
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
        """The result."""
        if self._mode != _VALUES:
            return self._chunks
        if self._version == "v2":
            return GraphOutput(value=self._value, interrupts=tuple(self._interrupts))
        output = self.output_of(self._value)
        if not self._interrupts:
            return output
        return {**(output if isinstance(output, dict) else {}), INTERRUPT: self._interrupts}

    def output_of(self, state: Any) -> Any:
        """What of a state the graph gives as its output."""
        if self._keys is None or not isinstance(state, Mapping):
            return state
        return {key: state[key] for key in self._keys if key in state}


def _lie_in(output: str | Sequence[str], state: Sequence[str]) -> bool:
    return not isinstance(output, str) and set(output) <= set(state)
