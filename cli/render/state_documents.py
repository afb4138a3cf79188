"""The state graph of a run for other programs: as a JSON document, and for Graphviz. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from cli.render.describe import short_ids
from orchestrator.durations import shown
from orchestrator.environment.states.past_states import PastStates
from store.printable_text import one_line
from store.state_records import EdgeKind, Revertibility, StateEdgeRecord, StateRecord

_COLOURS = {Revertibility.EXTERNAL: "red", Revertibility.NOT_REVERTIBLE: "orange"}


def state_document(past: PastStates, status: str) -> dict[str, Any]:
    """States, edges and checkpoints, in the order in which the run came to them.

    Args:
        status: of the run, as it is shown.
    """
    graph = past.graph()
    records = {state.id: asdict(state) for state in past.states}
    unknown = dict.fromkeys(field.name for field in fields(StateRecord))
    states = [
        records.get(state, unknown | {"id": state})
        | {"checkpoints": list(data["checkpoints"]), "workspaces": list(data["workspaces"])}
        for state, data in graph.nodes(data=True)
    ]
    edges = [
        asdict(data["record"]) | {"workspace": data["workspace"], "at_s": data["at_s"]}
        for _, _, data in sorted(graph.edges(data=True), key=lambda edge: edge[2]["order"])
    ]
    return {
        "run": past.run.id,
        "flow": past.run.flow,
        "status": status,
        "states": [_without(state, "uses", "unused_since") for state in states],
        "edges": [_without(edge, "run_id") for edge in edges],
        "checkpoints": [_without(asdict(each), "run_id") for each in past.checkpoints],
    }


def state_dot(past: PastStates) -> str:
    """The graph in the language of Graphviz's `dot`."""
    return "\n".join(_dot_lines(past))


def _dot_lines(past: PastStates) -> Iterator[str]:
    graph = past.graph()
    yield f"digraph {_quoted(past.run.id)} {{"
    yield '  node [shape=box, style=rounded, fontname="monospace"];'
    yield '  edge [fontname="sans-serif"];'
    for state, short in zip(graph, short_ids(list(graph)), strict=True):
        data = graph.nodes[state]
        names = [*data["checkpoints"], *(f"@{name}" for name in data["workspaces"])]
        yield f"  {_quoted(state)} [label={_label(short, *names)}];"
    for edge in past.edges:
        yield f"  {_quoted(edge.before)} -> {_quoted(edge.after)} [{_attributes(edge)}];"
    yield "}"


def _attributes(edge: StateEdgeRecord) -> str:
    changed = [f"{edge.num_changed:,} changed"] if edge.num_changed else []
    kind = [] if edge.kind is EdgeKind.ACTION else [str(edge.kind)]
    attributes = [f"label={_label(edge.path, *kind, shown(edge.seconds), *changed)}"]
    if colour := _COLOURS.get(edge.attribute):
        attributes.append(f"color={colour}")
    if edge.kind is not EdgeKind.ACTION:
        attributes.append("style=dashed")
    if edge.kind is EdgeKind.REWIND:
        attributes.append("constraint=false")
    return ", ".join(attributes)


def _label(*lines: str) -> str:
    """A label of several lines."""
    return '"' + r"\n".join(_escaped(line) for line in lines) + '"'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return one_line(text).replace("\\", r"\\").replace('"', r"\"")


def _without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}
