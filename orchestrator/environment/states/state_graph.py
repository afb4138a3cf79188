"""The state graph of a run: states, and the actions that led from one to another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.durability.outcomes import end_of
from store.errors import StateNotFound
from store.records import StepRecord
from store.state_records import (
    CheckpointRecord,
    EdgeKind,
    Revertibility,
    StateEdgeRecord,
    StateRecord,
)

if TYPE_CHECKING:
    import networkx as nx


def state_graph(
    edges: Iterable[StateEdgeRecord],
    checkpoints: Iterable[CheckpointRecord],
    states: Iterable[StateRecord],
    steps: Iterable[StepRecord] = (),
) -> nx.MultiDiGraph[str]:
    """The state graph; its nodes are ids of states, in the order in which the run came to them.

    Equal states are one node. So a rewind leads back to an earlier node, and an action that
    changed nothing leads from a node to itself.

    Attributes of a node: `files` (digest of the files), `num_changed` (files that differ from the
    base; both None if the state is not in `states`), `checkpoints` (names) and `workspaces` (names
    of those that were in this state at the end), both tuples.

    Attributes of an edge: `kind`, `path` and `number` of the step, `attribute`, `seconds`,
    `changed` (paths), `workspace` and `at_s` (when its step ended, since the run's start; both None
    if the step is not in `steps`), `order` (its place among all edges), `record` (the
    StateEdgeRecord, with more).

    Args:
        edges: in the order in which their steps ended.
        steps: of the run; others than those of the edges may be left out.
    """
    import networkx as nx  # takes 0.2 s to import, which most users of this package do not need

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    ended = sorted(steps, key=end_of)
    by_path = {step.path: step for step in ended}
    for order, edge in enumerate(edges):
        _add_node(graph, edge.before)
        _add_node(graph, edge.after)
        _add_edge(graph, edge, order, by_path.get(edge.path))
    at_the_end: dict[str, str] = {}  # workspace -> state
    for step in ended:
        for state in (step.state_before, step.state_after):
            if state is not None:
                _add_node(graph, state)
                if step.workspace is not None:
                    at_the_end[step.workspace] = state
    for checkpoint in checkpoints:
        node = _add_node(graph, checkpoint.state)
        if checkpoint.name not in node["checkpoints"]:
            node["checkpoints"] += (checkpoint.name,)
    for record in states:
        node = _add_node(graph, record.id)
        node |= {"files": record.files, "num_changed": record.num_entries}
    for workspace, state in sorted(at_the_end.items()):
        graph.nodes[state]["workspaces"] += (workspace,)
    return graph


def effects_after(
    graph: nx.MultiDiGraph[str],
    state: str,
    *,
    present: str | None = None,
    since_s: float | None = None,
) -> Sequence[StateEdgeRecord]:
    """What a rewind to a state would not undo: the effects on the ways from it to the present.

    Args:
        graph: from `state_graph`, with all steps of the run if `since_s` is given.
        present: the state from which to rewind; None: any state of the graph.
        since_s: when the run was in `state`. An action that changed no file leads from a state to
            itself: only its time says whether it came before or after.
    Returns:
        Edges that are not revertible, or external, in the order of the graph's.
    Raises:
        StateNotFound: one of the states is not in the graph.
    """
    import networkx as nx

    for each in (state, present):
        if each is not None and each not in graph:
            raise StateNotFound(each)
    onwards: nx.MultiDiGraph[str] = nx.MultiDiGraph(
        [each[:2] for each in graph.edges(data=True) if each[2]["kind"] is not EdgeKind.REWIND]
    )
    onwards.add_nodes_from(graph)
    later = {state, *nx.descendants(onwards, state)}
    earlier = set(graph) if present is None else {present, *nx.ancestors(onwards, present)}
    return [
        data["record"]
        for before, after, data in sorted(graph.edges(data=True), key=lambda edge: edge[2]["order"])
        if data["attribute"] is not Revertibility.REVERTIBLE
        and before in later
        and after in earlier
        and (since_s is None or data["at_s"] is None or data["at_s"] > since_s)
    ]


def _add_node(graph: nx.MultiDiGraph[str], state: str) -> dict[str, Any]:
    """The attributes of a state's node, which is added if it is missing."""
    if state not in graph:
        graph.add_node(state, files=None, num_changed=None, checkpoints=(), workspaces=())
    node: dict[str, Any] = graph.nodes[state]
    return node


def _add_edge(
    graph: nx.MultiDiGraph[str], edge: StateEdgeRecord, order: int, step: StepRecord | None
) -> None:
    graph.add_edge(
        edge.before,
        edge.after,
        kind=edge.kind,
        path=edge.path,
        number=edge.number,
        attribute=edge.attribute,
        seconds=edge.seconds,
        changed=tuple(edge.changed),
        workspace=None if step is None else step.workspace,
        at_s=None if step is None else step.finished_s,
        order=order,
        record=edge,
    )
