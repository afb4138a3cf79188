"""The pattern graph of one run: its calls and the dependencies between them.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(pattern graphs); Zhang et al. (2025), Tempo, section 4.1 (super-nodes).
"""

import operator
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from patterns.errors import (
    CyclicGraph,
    InvalidEdge,
    InvalidNode,
    InvalidPrefix,
    MissingAttribute,
    NotDirected,
    WrongAttribute,
)
from patterns.graph_svg import graph_picture
from patterns.nodes import LlmNode, Node, ToolNode
from patterns.ordering import canonical_order, topological_order
from patterns.stages import Stage, next_stage, summarise
from patterns.svg import Picture

if TYPE_CHECKING:
    import networkx as nx

Edge = tuple[int, int]


def _adjacency(num_nodes: int, edges: Sequence[Edge]) -> tuple[list[list[int]], list[list[int]]]:
    """The parents and the children of every node, ascending if the edges are sorted."""
    parents: list[list[int]] = [[] for _ in range(num_nodes)]
    children: list[list[int]] = [[] for _ in range(num_nodes)]
    for parent, child in edges:
        parents[child].append(parent)
        children[parent].append(child)
    return parents, children


def _checked_edges(num_nodes: int, edges: Iterable[Edge]) -> tuple[Edge, ...]:
    distinct: set[Edge] = set()
    for edge in edges:
        try:
            parent, child = map(operator.index, edge)
        except (TypeError, ValueError) as cause:
            raise InvalidEdge(edge, None, "an edge is a pair of node indexes") from cause
        if not (0 <= parent < num_nodes and 0 <= child < num_nodes):
            raise InvalidEdge(parent, child, f"node indexes are 0 to {num_nodes - 1}")
        if parent == child:
            raise InvalidEdge(parent, child, "a call cannot depend on itself")
        distinct.add((parent, child))
    return tuple(sorted(distinct))


@dataclass(frozen=True)
class PatternGraph:
    """Calls and their dependencies, validated; graphs with equal nodes and edges are equal.

    Args:
        nodes: shape (n,), in any order; n is 0 before a live run's first call.
        edges: (parent, child) pairs of node indexes; stored sorted and without duplicates.
    Attributes:
        parents: for each node the indexes of its parents, ascending.
        children: for each node the indexes of its children, ascending.
        topological_order: the node indexes, parents first; ties by lowest index.
    Raises:
        InvalidNode: an element of `nodes` is neither an LlmNode nor a ToolNode.
        InvalidEdge: an edge is not a pair of node indexes in range, or is a self-loop.
        CyclicGraph: some calls depend on each other in a cycle.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    parents: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    children: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    topological_order: tuple[int, ...] = field(init=False, repr=False, compare=False)

    @classmethod
    def of_layers(cls, layers: Iterable[Sequence[Node]]) -> "PatternGraph":
        """The graph in which each call depends on all of the layer before; empty ones are skipped.

        Raises:
            InvalidNode: as the constructor.
        """
        nodes: list[Node] = []
        edges: list[Edge] = []
        before: range = range(0)
        for layer in filter(None, layers):
            own = range(len(nodes), len(nodes) + len(layer))
            nodes.extend(layer)
            edges.extend((parent, child) for parent in before for child in own)
            before = own
        return cls(tuple(nodes), tuple(edges))

    def __post_init__(self) -> None:
        nodes = tuple(self.nodes)
        for node in nodes:
            if not isinstance(node, LlmNode | ToolNode):
                raise InvalidNode(node, "type", type(node).__name__, "LlmNode or ToolNode")
        edges = _checked_edges(len(nodes), self.edges)
        parents, children = _adjacency(len(nodes), edges)
        derived = {
            "nodes": nodes,
            "edges": edges,
            "parents": tuple(map(tuple, parents)),
            "children": tuple(map(tuple, children)),
            "topological_order": topological_order(parents, children),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """Shape (n,): each node's 0-based longest-path layer."""
        stage_of = [0] * len(self.nodes)
        for node in self.topological_order:
            stage_of[node] = next_stage(stage_of[parent] for parent in self.parents[node])
        return tuple(stage_of)

    @cached_property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """The node indexes of each stage, ascending."""
        layers: list[list[int]] = [[] for _ in range(max(self.stage_of, default=-1) + 1)]
        for node, stage in enumerate(self.stage_of):
            layers[stage].append(node)
        return tuple(map(tuple, layers))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Shape (num_stages,): the summary of each layer."""
        return tuple(summarise(i, members, self.nodes) for i, members in enumerate(self.layers))

    @cached_property
    def _longest_path(self) -> tuple[tuple[int, ...], float]:
        """The nodes of the longest path by seconds, and its length in seconds."""
        finish = [0.0] * len(self.nodes)
        previous: list[int | None] = [None] * len(self.nodes)
        for node in self.topological_order:
            # max() returns the first of equal ones, so ties are broken by the lowest index.
            latest = max(self.parents[node], key=finish.__getitem__, default=None)
            previous[node] = latest
            start = 0.0 if latest is None else finish[latest]
            finish[node] = start + self.nodes[node].seconds
        if not self.nodes:
            return (), 0.0
        # Ties are broken by the deepest node, so that the path includes calls of 0 seconds.
        last = max(range(len(finish)), key=lambda node: (finish[node], self.stage_of[node], -node))
        path: list[int] = []
        current: int | None = last
        while current is not None:
            path.append(current)
            current = previous[current]
        return tuple(reversed(path)), finish[last]

    def critical_path(self) -> tuple[int, ...]:
        """The chain of calls that takes longest, starting at a root; empty without nodes."""
        return self._longest_path[0]

    @property
    def critical_seconds(self) -> float:
        """Sum of seconds along the critical path: the shortest time in which the run can end."""
        return self._longest_path[1]

    def prefix(self, num_stages: int) -> "PatternGraph":
        """The graph of the first stages; the whole graph if it has no more. Nodes keep their order.

        Raises:
            InvalidPrefix: num_stages is negative.
        """
        if num_stages < 0:
            raise InvalidPrefix(num_stages)
        if num_stages >= len(self.layers):
            return self
        return self._pick([n for n, stage in enumerate(self.stage_of) if stage < num_stages])

    def canonical(self) -> "PatternGraph":
        """The same graph with its nodes in an order that does not depend on their recording.

        The order is by stage, then kind, identity, tokens, seconds, parents and children;
        `canonical_order` says which calls cannot be distinguished.
        """
        order = canonical_order(self.nodes, self.layers, self.parents, self.children)
        return self._pick(order)

    def _pick(self, order: Sequence[int]) -> "PatternGraph":
        """The graph of the nodes with these indexes, in this order, with the edges among them."""
        new = {node: index for index, node in enumerate(order)}
        return PatternGraph(
            nodes=tuple(self.nodes[node] for node in order),
            edges=tuple((new[p], new[c]) for p, c in self.edges if p in new and c in new),
        )

    @property
    def svg(self) -> str:
        """The graph as a picture of its own; large graphs are shortened."""
        return self._picture().svg

    def _repr_html_(self) -> str:
        return self._picture().html

    def _picture(self) -> Picture:
        return graph_picture(self.nodes, self.edges, self.layers, longest=self.critical_path())

    def to_networkx(self) -> "nx.DiGraph[int]":
        """A DiGraph over the node indexes.

        Every node has the attributes kind ("llm" or "tool"), identity, input_tokens,
        output_tokens (both 0 for a tool) and seconds.
        """
        import networkx as nx  # takes 0.2 s to import, which most users of this module do not need

        graph: nx.DiGraph[int] = nx.DiGraph()
        for index, node in enumerate(self.nodes):
            graph.add_node(
                index,
                kind=node.kind,
                identity=node.identity,
                input_tokens=node.input_tokens,
                output_tokens=node.output_tokens,
                seconds=node.seconds,
            )
        graph.add_edges_from(self.edges)
        return graph


def from_networkx(graph: "nx.DiGraph[Any]") -> PatternGraph:
    """The pattern graph of a DiGraph with the node attributes that `to_networkx` writes.

    Nodes are in topological order; ties are broken by the graph's own order.

    Args:
        graph: labels may be any hashable objects; a tool needs no token counts. Other attributes
            are ignored, and so are repeated edges of a multigraph.
    Raises:
        NotDirected: the graph is undirected.
        MissingAttribute: a node lacks an attribute; both are named.
        WrongAttribute: an attribute has a wrong value; the node, the value and the rule are named.
        InvalidEdge: a node has an edge to itself.
        CyclicGraph: the graph has a cycle; the labels along one cycle are named.
    """
    if not graph.is_directed():
        raise NotDirected(type(graph).__name__)
    labels: list[Any] = list(graph.nodes)
    index = {label: position for position, label in enumerate(labels)}
    edges: set[Edge] = set()
    for parent, child in graph.edges():
        if index[parent] == index[child]:
            raise InvalidEdge(parent, child, "a call cannot depend on itself")
        edges.add((index[parent], index[child]))
    try:
        order = topological_order(*_adjacency(len(labels), sorted(edges)))
    except CyclicGraph as error:
        raise CyclicGraph(tuple(labels[node] for node in error.cycle)) from None
    new = {node: index for index, node in enumerate(order)}
    return PatternGraph(
        nodes=tuple(_node_from(labels[n], graph.nodes[labels[n]]) for n in order),
        edges=tuple((new[parent], new[child]) for parent, child in edges),
    )


def _node_from(label: Hashable, attributes: dict[str, Any]) -> Node:
    def value_of(name: str) -> Any:
        if name not in attributes:
            raise MissingAttribute(label, name, tuple(map(str, attributes)))
        return attributes[name]

    kind, identity, seconds = value_of("kind"), value_of("identity"), value_of("seconds")
    if not isinstance(kind, str) or kind not in ("llm", "tool"):
        raise WrongAttribute(label, "kind", kind, "'llm' or 'tool'")
    counts = {"input_tokens": 0, "output_tokens": 0}
    for name in counts:
        if kind == "llm" or name in attributes:
            counts[name] = value_of(name)
    try:
        node = LlmNode(identity, **counts, seconds=seconds)
    except InvalidNode as error:
        _, name, value, rule = error.args
        raise WrongAttribute(label, name, value, rule) from error
    if kind == "llm":
        return node
    for name in counts:
        if getattr(node, name):
            raise WrongAttribute(label, name, counts[name], "0 or absent for a tool")
    return ToolNode(identity, seconds)
