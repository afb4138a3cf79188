"""A search tree as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agents.tree_of_thoughts.solution import Node
from agents.tree_of_thoughts.tree_view import MAX_CHILDREN, ShownNode, shown_tree
from store.printable_text import one_line

WIDTH = 76
"""Most columns of a line: a terminal of 80 with the margin of rendered Markdown."""

INDENT_SHARE = 0.4
"""Most of a line that the indent of a deep thought takes."""

_ENDS = {"solved": "  solved", "dead": "  dead end", "open": ""}


def tree_lines(
    nodes: Sequence[Node], *, max_children: int = MAX_CHILDREN, width: int = WIDTH
) -> list[str]:
    """The tree, a thought a line, with its value; the way to the best thought is marked with *.

    Args:
        max_children: most thoughts shown below one thought; the others are counted.
        width: most columns of a line, at least 2; longer thoughts are cut, and of deep ones the
            level stands instead of the lines that lead to them.
    """

    most_indent = int(width * INDENT_SHARE)

    def fitting(indent: str) -> str:
        return indent if len(indent) <= most_indent else f"…{len(indent) // 3}".ljust(most_indent)

    def below(shown: ShownNode, indent: str) -> Iterator[str]:
        for place, child in enumerate(shown.children):
            is_last = place == len(shown.children) - 1 and not shown.hidden
            corner, bar = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            note = "" if child.children else child.hidden
            yield _line(nodes[child.number], f"{fitting(indent)}{corner}", note, width)
            yield from below(child, indent + bar)
        if shown.hidden and (shown.children or not shown.number):
            yield cut(f"{fitting(indent)}└─ {shown.hidden}", width)

    return [
        cut(one_line(nodes[0].move), width),
        *below(shown_tree(nodes, max_children=max_children), ""),
    ]


def cut(text: str, length: int) -> str:
    """A text of at most `length` characters, at least 2; an ellipsis says that it was longer."""
    length = max(length, 2)
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _line(node: Node, before: str, note: str, width: int) -> str:
    mark = "* " if node.is_best else ""
    value = "" if node.value is None else f"  {node.value:.2f}"
    after = f"{value}{_ENDS[node.status]}{f'  ({note})' if note else ''}"
    move = cut(one_line(node.move), width - len(before) - len(mark) - len(after))
    return cut(f"{before}{mark}{move}{after}", width)
