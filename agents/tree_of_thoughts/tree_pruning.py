"""A search tree without its least promising thoughts, small enough for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agents.tree_of_thoughts.solution import Node


def best_thoughts(nodes: Sequence[Node], *, max_children: int) -> tuple[Node, ...]:
    """The tree with at most `max_children` thoughts below each: the way to the answer, the best.

    Args:
        nodes: the root first; a node's parent comes before it.
    """
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(number)
    kept = {0}
    for number in range(len(nodes)):
        if number in kept:
            ranked = sorted(
                children[number],
                key=lambda at: (not nodes[at].is_best, -(nodes[at].value or 0.0), at),
            )
            kept.update(ranked[:max_children])
    numbers = {old: new for new, old in enumerate(sorted(kept))}
    return tuple(
        replace(
            nodes[old], parent=None if (parent := nodes[old].parent) is None else numbers[parent]
        )
        for old in numbers
    )
