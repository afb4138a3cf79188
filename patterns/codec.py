"""Pattern graphs as bytes: small, versioned and checked.

A run has two views, and each has its own kind of document:

- **nodes** (`encode`, `decode`): the whole graph, with every call and dependency.
- **stages** (`encode_stages`, `decode_stages`): one super-node for each stage. A realistic workflow
  takes at most 200 bytes; `patterns.condensing` reduces longer ones to that.

Order, kinds, identities, edges and numbers of calls are stored exactly. Rounded are, in both views:

- token counts: exact below 64; above, with a relative error of at most 1/64 (1.6%);
- seconds: to the nearest 2**-20 s (about a microsecond), then with a relative error of at most
  1/128 (0.8%); together at most 2**-20 s + seconds / 128.

Rounding preserves order, and encoding a decoded pattern gives the same document again. Decoding
any bytes gives a pattern or raises a CodecError, in memory bounded by the limits below.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(size of a stored pattern graph).
"""

from collections.abc import Iterable, Iterator, Sequence

from patterns.errors import CorruptPattern, InvalidStage, PatternError, PatternTooLarge, WrongView
from patterns.graph import Edge, PatternGraph
from patterns.nodes import Kind, LlmNode, Node, ToolNode
from patterns.stages import CallCount, Stage, count_llm_calls
from patterns.wire import CODEC_VERSION, Reader, Writer, quantise, restore, seal, unseal

__all__ = [
    "CODEC_VERSION",
    "MAX_CALLS",
    "MAX_EDGES",
    "decode",
    "decode_stages",
    "encode",
    "encode_stages",
    "stages_in",
]

MAX_CALLS = 1 << 17
"""Limit on the calls in one document of either view."""

MAX_EDGES = 1 << 20
"""Limit on the edges in one document."""

# Mantissa bits of rounded amounts, see `quantise`.
_TOKEN_BITS = 5
_SECOND_BITS = 6
_TICKS_PER_SECOND = 1 << 20


def encode(graph: PatternGraph) -> bytes:
    """The document of a whole graph, in the order of its nodes; it is shorter in canonical order.

    Raises:
        PatternTooLarge: more than MAX_CALLS nodes, MAX_EDGES edges or 4 MiB of identities.
    """
    _check_size("nodes", len(graph.nodes), MAX_CALLS)
    _check_size("edges", len(graph.edges), MAX_EDGES)
    writer = Writer()
    number_of = _write_identities(writer, {(node.kind, node.identity) for node in graph.nodes})
    writer.number(len(graph.nodes))
    # Columns, not rows: similar values next to each other compress better.
    for node in graph.nodes:
        writer.number(number_of[node.kind, node.identity])
    for node in graph.nodes:
        if node.kind == "llm":
            writer.number(quantise(node.input_tokens, _TOKEN_BITS))
    for node in graph.nodes:
        if node.kind == "llm":
            writer.number(quantise(node.output_tokens, _TOKEN_BITS))
    for node in graph.nodes:
        _write_seconds(writer, node.seconds)
    _write_parents(writer, graph.parents)
    return seal("nodes", writer.body)


def decode(data: bytes) -> PatternGraph:
    """Inverse of `encode`, up to the rounding that the module's docstring states.

    Raises:
        CodecError: a subclass that says what is wrong with the bytes.
    """
    reader = Reader(unseal("nodes", data))
    identities, num_llm = _read_identities(reader)
    num_nodes = _read_calls(reader)
    numbers = [_checked(reader.number(), identities) for _ in range(num_nodes)]
    llm = [index for index, number in enumerate(numbers) if number < num_llm]
    inputs = {index: restore(reader.number(), _TOKEN_BITS) for index in llm}
    outputs = {index: restore(reader.number(), _TOKEN_BITS) for index in llm}
    seconds = [_read_seconds(reader) for _ in range(num_nodes)]
    edges = _read_edges(reader, num_nodes)
    reader.end()

    def node(index: int) -> Node:
        identity = identities[numbers[index]]
        if index in inputs:
            return LlmNode(identity, inputs[index], outputs[index], seconds[index])
        return ToolNode(identity, seconds[index])

    try:
        return PatternGraph(tuple(map(node, range(num_nodes))), tuple(edges))
    except PatternError as cause:
        raise CorruptPattern(str(cause)) from cause


def encode_stages(stages: Sequence[Stage]) -> bytes:
    """The document of a run's stages, from the first one on, without the members' node indexes.

    Raises:
        InvalidStage: the stages are not numbered 0, 1, 2, ...
        PatternTooLarge: more than MAX_CALLS calls, or 4 MiB of identities.
    """
    _check_size("calls", sum(len(stage.members) for stage in stages), MAX_CALLS)
    writer = Writer()
    calls = {(call.kind, call.identity) for stage in stages for call in stage.calls}
    number_of = _write_identities(writer, calls)
    writer.number(len(stages))
    for position, stage in enumerate(stages):
        if stage.index != position:
            raise InvalidStage(stage.index, "index", stage.index, f"{position}, its position")
        writer.number(len(stage.calls))
        for call in stage.calls:
            writer.number(number_of[call.kind, call.identity])
            writer.number(call.num_calls)
        kinds = {call.kind for call in stage.calls}
        if "llm" in kinds:
            writer.number(quantise(stage.input_tokens, _TOKEN_BITS))
            writer.number(quantise(stage.output_tokens, _TOKEN_BITS))
            if stage.num_llm_calls > 1:  # otherwise it equals the sum
                writer.number(quantise(stage.longest_output_tokens, _TOKEN_BITS))
            _write_seconds(writer, stage.seconds)
        if "tool" in kinds:
            _write_seconds(writer, stage.tool_seconds)
    return seal("stages", writer.body)


def decode_stages(data: bytes) -> tuple[Stage, ...]:
    """Inverse of `encode_stages`, up to the rounding that the module's docstring states.

    The members are numbered in the order of the stages, as in the run's canonical graph.

    Raises:
        CodecError: a subclass that says what is wrong with the bytes.
    """
    reader = Reader(unseal("stages", data))
    identities, num_llm = _read_identities(reader)
    stages: list[Stage] = []
    num_calls = 0
    for index in range(_read_calls(reader)):
        stage = _read_stage(reader, identities, num_llm, index=index, first_member=num_calls)
        num_calls += len(stage.members)
        stages.append(stage)
    reader.end()
    return tuple(stages)


def stages_in(data: bytes) -> tuple[Stage, ...]:
    """The stages of a document of either view.

    Raises:
        CodecError: a subclass that says what is wrong with the bytes.
    """
    try:
        return decode(data).stages
    except WrongView:
        return decode_stages(data)


def _read_stage(
    reader: Reader, identities: Sequence[str], num_llm: int, *, index: int, first_member: int
) -> Stage:
    calls: list[CallCount] = []
    num_calls = 0
    for _ in range(reader.count()):
        number, count = _checked(reader.number(), identities), reader.number()
        calls.append(CallCount(identities[number], "llm" if number < num_llm else "tool", count))
        num_calls += count
        if first_member + num_calls > MAX_CALLS:
            raise CorruptPattern("too many calls")
    kinds = {call.kind for call in calls}
    input_tokens = output_tokens = longest_output_tokens = 0
    seconds = tool_seconds = 0.0
    if "llm" in kinds:
        input_tokens = restore(reader.number(), _TOKEN_BITS)
        output_tokens = longest_output_tokens = restore(reader.number(), _TOKEN_BITS)
        if count_llm_calls(calls) > 1:
            longest_output_tokens = restore(reader.number(), _TOKEN_BITS)
        seconds = _read_seconds(reader)
    if "tool" in kinds:
        tool_seconds = _read_seconds(reader)
    try:
        return Stage(
            index=index,
            members=tuple(range(first_member, first_member + num_calls)),
            calls=tuple(calls),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            longest_output_tokens=longest_output_tokens,
            seconds=seconds if "llm" in kinds else tool_seconds,
            tool_seconds=tool_seconds,
        )
    except PatternError as cause:
        raise CorruptPattern(str(cause)) from cause


def _check_size(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise PatternTooLarge(what, found, limit)


def _write_identities(writer: Writer, calls: set[tuple[Kind, str]]) -> dict[tuple[Kind, str], int]:
    """Write each distinct call once, LLM calls first; returns call -> its number."""
    for kind in ("llm", "tool"):
        writer.texts(sorted(identity for each, identity in calls if each == kind))
    return {call: number for number, call in enumerate(sorted(calls))}


def _read_identities(reader: Reader) -> tuple[list[str], int]:
    """All identities by number, and how many of them are of LLM calls: these come first."""
    llm, tools = reader.texts(), reader.texts()
    return llm + tools, len(llm)


def _checked(number: int, identities: Sequence[str]) -> int:
    if number >= len(identities):
        raise CorruptPattern("a call has no identity")
    return number


def _read_calls(reader: Reader) -> int:
    num_calls = reader.count()
    if num_calls > MAX_CALLS:
        raise CorruptPattern("too many calls")
    return num_calls


def _write_seconds(writer: Writer, seconds: float) -> None:
    writer.number(quantise(round(seconds * _TICKS_PER_SECOND), _SECOND_BITS))


def _read_seconds(reader: Reader) -> float:
    return restore(reader.number(), _SECOND_BITS) / _TICKS_PER_SECOND


def _write_parents(writer: Writer, parents: Iterable[tuple[int, ...]]) -> None:
    """Write the parents of each node as ranges of adjacent indexes.

    For each node: 0 if its parents are those of the previous node, else 1 + the number of ranges.
    A range is written as a distance and its length - 1. The first distance is from the range's
    start to the node (signed), the others are from the previous range's end to the start.
    """
    previous: tuple[int, ...] = ()
    for node, node_parents in enumerate(parents):
        if node_parents == previous:
            writer.number(0)
            continue
        previous = node_parents
        ranges = list(_ranges(node_parents))
        writer.number(1 + len(ranges))
        end = None
        for start, stop in ranges:
            if end is None:
                writer.signed(node - start)
            else:
                writer.number(start - end - 1)
            writer.number(stop - start - 1)
            end = stop


def _ranges(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending indexes as half-open ranges (start, stop) of adjacent ones."""
    start = 0
    for i in range(1, len(indexes) + 1):
        if i == len(indexes) or indexes[i] != indexes[i - 1] + 1:
            yield indexes[start], indexes[i - 1] + 1
            start = i


def _read_edges(reader: Reader, num_nodes: int) -> list[Edge]:
    """Inverse of `_write_parents`."""
    edges: list[Edge] = []
    parents: list[int] = []
    for node in range(num_nodes):
        code = reader.number()
        if code:
            parents = []
            end: int | None = None
            for _ in range(code - 1):
                start = node - reader.signed() if end is None else end + 1 + reader.number()
                end = start + reader.number() + 1
                if start < 0 or end > num_nodes:
                    raise CorruptPattern("an edge begins at a node that does not exist")
                parents.extend(range(start, end))
        if len(edges) + len(parents) > MAX_EDGES:
            raise CorruptPattern("too many edges")
        edges.extend((parent, node) for parent in parents)
    return edges
