"""Orders of a graph's nodes: by dependency, and independent of how they were recorded."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from patterns.errors import CyclicGraph
from patterns.nodes import Node

Neighbours = Sequence[Sequence[int]]
"""For each node the indexes of its parents, or of its children, ascending."""

_REFINEMENTS = 4
"""Each is one sweep down and one up, so differences travel any distance within one sweep; more
than two are needed only where calls are tied through chains of shared parents and children."""


def topological_order(parents: Neighbours, children: Neighbours) -> tuple[int, ...]:
    """Every node after its parents; where that leaves a choice, the lowest index first.

    Nodes recorded in an order that respects their dependencies therefore keep it.

    Raises:
        CyclicGraph: there is no such order; names the nodes of one cycle.
    """
    waiting_for = [len(its_parents) for its_parents in parents]
    ready = [node for node, count in enumerate(waiting_for) if count == 0]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for child in children[node]:
            waiting_for[child] -= 1
            if waiting_for[child] == 0:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        raise CyclicGraph(_cycle_among(parents, waiting_for))
    return tuple(order)


def _cycle_among(parents: Neighbours, waiting_for: Sequence[int]) -> tuple[int, ...]:
    """One cycle: walking from parent to parent among the nodes left over must come round."""
    node = next(node for node, count in enumerate(waiting_for) if count)
    seen_at: dict[int, int] = {}
    while node not in seen_at:
        seen_at[node] = len(seen_at)
        node = next(parent for parent in parents[node] if waiting_for[parent])
    backwards = list(seen_at)[seen_at[node] :]
    return tuple(reversed(backwards))


def canonical_order(
    nodes: Sequence[Node],
    layers: Sequence[Sequence[int]],
    parents: Neighbours,
    children: Neighbours,
) -> tuple[int, ...]:
    """The nodes by stage, then kind, identity, tokens and seconds, then parents, then children.

    Calls with equal attributes are told apart by their ancestors and descendants. That settles
    every forest and whatever attributes distinguish; calls that only a test of graph isomorphism
    could tell apart stay in the order in which they were recorded.

    Args:
        nodes: shape (n,).
        layers: the nodes' indexes by stage; edges lead from earlier to later layers only.
        parents: shape (n,).
        children: shape (n,).
    Returns:
        shape (n,), a permutation: the index of the node to put at each place.
    """
    place = [0] * len(nodes)

    def by_attributes(node: int) -> tuple[Any, ...]:
        it = nodes[node]
        return (it.kind, it.identity, it.input_tokens, it.output_tokens, it.seconds)

    def by_parents(node: int) -> tuple[Any, ...]:
        return (place[node], sorted(place[parent] for parent in parents[node]))

    def by_children(node: int) -> tuple[Any, ...]:
        return (place[node], sorted(place[child] for child in children[node]))

    starts = [0]
    for layer in layers:
        starts.append(starts[-1] + len(layer))
    downwards = list(zip(starts[:-1], layers, strict=True))
    upwards = downwards[::-1]

    num_places = _rank(downwards, by_attributes, place)
    for _ in range(_REFINEMENTS):
        before = num_places
        _rank(downwards, by_parents, place)
        num_places = _rank(upwards, by_children, place)
        if num_places in (before, len(nodes)):
            break
    _rank(downwards, lambda node: (*by_parents(node), node), place)
    order = [0] * len(nodes)
    for node, where in enumerate(place):
        order[where] = node
    return tuple(order)


def _rank(
    layers: Sequence[tuple[int, Sequence[int]]],
    key: Callable[[int], tuple[Any, ...]],
    place: list[int],
) -> int:
    """Set every node's place, layer after layer, to the first one that its key allows.

    Args:
        layers: (first place of the layer, its nodes), in the order to visit them.
        key: sorts a layer's nodes; may look at places in other layers.
        place: shape (n,); changed here. Nodes of equal keys share a place.
    Returns:
        the number of different places.
    """
    num_places = 0
    for start, layer in layers:
        keyed = sorted((key(node), node) for node in layer)
        shared = start
        for offset, (its_key, node) in enumerate(keyed):
            if offset == 0 or its_key != keyed[offset - 1][0]:
                shared = start + offset
                num_places += 1
            place[node] = shared
    return num_places
