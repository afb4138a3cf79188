"""A search tree as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agents.tree_of_thoughts.solution import Node

MAX_CHILDREN = 5
"""Most thoughts shown below one thought, the best ones; the others are counted."""

_ENDS = {"solved": "  solved", "dead": "  dead end", "open": ""}


def tree_lines(nodes: Sequence[Node], *, max_children: int = MAX_CHILDREN) -> list[str]:
    """The tree, a thought a line, with its value; the way to the best thought is marked with *."""
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(number)

    def below(number: int, indent: str) -> Iterator[str]:
        ranked = sorted(
            children[number],
            key=lambda at: (not nodes[at].is_best, -(nodes[at].value or 0.0), at),
        )
        shown, hidden = ranked[:max_children], len(ranked) - max_children
        for place, child in enumerate(shown):
            is_last = place == len(shown) - 1 and hidden <= 0
            corner, bar = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            yield f"{indent}{corner}{_line(nodes[child])}"
            yield from below(child, indent + bar)
        if hidden > 0:
            yield f"{indent}└─ and {hidden} more"

    return [nodes[0].move, *below(0, "")]


def _line(node: Node) -> str:
    mark = "* " if node.is_best else ""
    value = "" if node.value is None else f"  {node.value:.2f}"
    return f"{mark}{node.move}{value}{_ENDS[node.status]}"
