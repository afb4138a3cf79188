"""Which thoughts of a search tree are shown: the way to the answer, and the best ones beside it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from agents.tree_of_thoughts.solution import Node

MAX_CHILDREN = 5
"""Most thoughts shown below one thought, beside the way to the answer; the others are counted."""

MAX_SHOWN = 30
"""Most thoughts shown, beside the way to the answer."""


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A thought that is shown.

    Attributes:
        number: of the thought.
        children: the thoughts shown below it, the way to the answer first, then by value.
        hidden: what is not shown below it, such as "and 3 more"; "": nothing.
    """

    number: int
    children: tuple[ShownNode, ...]
    hidden: str


def shown_tree(
    nodes: Sequence[Node], *, max_children: int = MAX_CHILDREN, max_shown: int = MAX_SHOWN
) -> ShownNode:
    """The part of a tree to show, from its root.

    Args:
        nodes: the root first; a node's parent comes before it.
    """
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(number)
    kept = _kept(nodes, children, max_children, max_shown)

    def view(number: int) -> ShownNode:
        below = sorted((each for each in children[number] if each in kept), key=rank)
        return ShownNode(number, tuple(map(view, below)), hidden(children[number]))

    def rank(number: int) -> tuple[bool, bool, float, int]:
        node = nodes[number]
        return (not node.is_best, node.status == "dead", -(node.value or 0.0), number)

    def hidden(numbers: Sequence[int]) -> str:
        left = [nodes[each] for each in numbers if each not in kept]
        num_dead = sum(node.status == "dead" for node in left)
        if num_dead == len(left):
            return f"{num_dead} dead end{'s' if num_dead > 1 else ''}" if left else ""
        return f"and {len(left)} more" + (f", {num_dead} of them dead ends" if num_dead else "")

    return view(0)


def _kept(
    nodes: Sequence[Node], children: Sequence[Sequence[int]], max_children: int, max_shown: int
) -> set[int]:
    """The numbers of the thoughts to show: those that were expanded first, then the best ones."""
    kept = {0} | {number for number, node in enumerate(nodes) if node.is_best}
    num_below = {number: sum(each in kept for each in children[number]) for number in kept}
    queue: list[tuple[bool, float, int]] = []

    def offer(parent: int) -> None:
        for number in children[parent]:
            if number not in kept and nodes[number].status != "dead":
                entry = (not children[number], -(nodes[number].value or 0.0), number)
                heapq.heappush(queue, entry)

    for number in sorted(kept):
        offer(number)
    num_left = max_shown
    while queue and num_left:
        number = heapq.heappop(queue)[2]
        parent = nodes[number].parent
        assert parent is not None, "the root is shown already"
        if num_below[parent] >= max_children:
            continue
        num_left -= 1
        num_below[parent] += 1
        kept.add(number)
        num_below[number] = 0
        offer(number)
    return kept
