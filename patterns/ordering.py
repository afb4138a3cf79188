"""Orders of a graph's nodes: topological, and canonical (independent of the recording order)."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from patterns.errors import CyclicGraph
from patterns.nodes import Node

Neighbours = Sequence[Sequence[int]]
"""For each node the indexes of its parents, or of its children, ascending."""

_REFINEMENTS = 4
"""Limit on refinements. Each is one sweep from parents to children and one back, and a sweep
propagates differences over any distance. More than two are needed only if calls are tied through
chains of shared parents and children."""


def topological_order(parents: Neighbours, children: Neighbours) -> tuple[int, ...]:
    """Every node after its parents; ties are broken by the lowest index.

    So nodes that are recorded in an order that respects their dependencies keep it.

    Raises:
        CyclicGraph: there is no such order; names the nodes of one cycle.
    """
    num_unmet = [len(node_parents) for node_parents in parents]  # parents not in `order` yet
    ready = [node for node, count in enumerate(num_unmet) if count == 0]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for child in children[node]:
            num_unmet[child] -= 1
            if num_unmet[child] == 0:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        raise CyclicGraph(_cycle_among(parents, num_unmet))
    return tuple(order)


def _cycle_among(parents: Neighbours, num_unmet: Sequence[int]) -> tuple[int, ...]:
    """One cycle: a walk from parent to parent among the nodes that are left must repeat a node."""
    node = next(node for node, count in enumerate(num_unmet) if count)
    position: dict[int, int] = {}  # node -> its position in the walk
    while node not in position:
        position[node] = len(position)
        node = next(parent for parent in parents[node] if num_unmet[parent])
    against_edges = list(position)[position[node] :]
    return tuple(reversed(against_edges))


def canonical_order(
    nodes: Sequence[Node],
    layers: Sequence[Sequence[int]],
    parents: Neighbours,
    children: Neighbours,
) -> tuple[int, ...]:
    """The nodes by stage, then kind, identity, tokens and seconds, then parents, then children.

    Calls with equal attributes are distinguished by their ancestors and descendants. That gives
    every forest a unique order. Calls that only a test of graph isomorphism could distinguish stay
    in the order in which they were recorded.

    Args:
        nodes: shape (n,).
        layers: the nodes' indexes by stage; edges lead from earlier to later layers only.
        parents: shape (n,).
        children: shape (n,).
    Returns:
        shape (n,), a permutation: the index of the node for each position.
    """
    rank = [0] * len(nodes)

    def by_attributes(node: int) -> tuple[Any, ...]:
        call = nodes[node]
        return (call.kind, call.identity, call.input_tokens, call.output_tokens, call.seconds)

    def by_parents(node: int) -> tuple[Any, ...]:
        return (rank[node], sorted(rank[parent] for parent in parents[node]))

    def by_children(node: int) -> tuple[Any, ...]:
        return (rank[node], sorted(rank[child] for child in children[node]))

    starts = [0]
    for layer in layers:
        starts.append(starts[-1] + len(layer))
    downwards = list(zip(starts[:-1], layers, strict=True))
    upwards = downwards[::-1]

    num_ranks = _assign_ranks(downwards, by_attributes, rank)
    for _ in range(_REFINEMENTS):
        before = num_ranks
        _assign_ranks(downwards, by_parents, rank)
        num_ranks = _assign_ranks(upwards, by_children, rank)
        if num_ranks in (before, len(nodes)):
            break
    _assign_ranks(downwards, lambda node: (*by_parents(node), node), rank)
    order = [0] * len(nodes)
    for node, position in enumerate(rank):
        order[position] = node
    return tuple(order)


def _assign_ranks(
    layers: Sequence[tuple[int, Sequence[int]]],
    key: Callable[[int], tuple[Any, ...]],
    rank: list[int],
) -> int:
    """Set every node's rank, layer after layer; nodes with equal keys share the lowest rank.

    Args:
        layers: (first rank of the layer, its nodes), in the order to visit them.
        key: sorts a layer's nodes; may use ranks in other layers.
        rank: shape (n,); changed here.
    Returns:
        the number of distinct ranks.
    """
    num_ranks = 0
    for start, layer in layers:
        keyed = sorted((key(node), node) for node in layer)
        shared = start
        for offset, (node_key, node) in enumerate(keyed):
            if offset == 0 or node_key != keyed[offset - 1][0]:
                shared = start + offset
                num_ranks += 1
            rank[node] = shared
    return num_ranks
