"""A search tree as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Set

from agents.tree_of_thoughts.search import Search, Status, Thought

MAX_CHILDREN = 6
"""Most thoughts shown below one thought, the best ones; the others are counted."""


def tree_lines(search: Search, *, max_children: int = MAX_CHILDREN) -> list[str]:
    """The tree, a thought a line, with its value; the path to the best thought is marked with *."""
    best = {each.number for each in search.path_to(search.best())}
    root = search.thoughts[0]
    return [root.step.state, *_below(search, root, "", best, max_children)]


def _below(
    search: Search, thought: Thought, indent: str, best: Set[int], max_children: int
) -> Iterator[str]:
    children = sorted(
        search.children_of(thought),
        key=lambda each: (each.number not in best, -(each.value or 0.0), each.number),
    )
    shown, hidden = children[:max_children], len(children) - max_children
    for place, child in enumerate(shown):
        is_last = place == len(shown) - 1 and hidden <= 0
        corner, bar = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield f"{indent}{corner}{_line(child, child.number in best)}"
        yield from _below(search, child, indent + bar, best, max_children)
    if hidden > 0:
        yield f"{indent}└─ and {hidden} more"


def _line(thought: Thought, is_best: bool) -> str:
    mark = "* " if is_best else ""
    value = "" if thought.value is None else f"  {thought.value:.2f}"
    end = {Status.SOLVED: "  solved", Status.DEAD: "  dead end"}.get(thought.step.status, "")
    return f"{mark}{thought.step.move}{value}{end}"
