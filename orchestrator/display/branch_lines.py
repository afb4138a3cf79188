"""A graph as text, a line for each node, with branches side by side. Pure.

As `git log --graph` does, but the first node comes first. Each column of the drawing leads to one
node below. A node takes the leftmost of the columns that lead to it, and the others join there;
below it, each of its further children gets a column of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.display.glyphs import BranchGlyphs

Children = Mapping[str, Sequence[str]]
"""Node -> those that follow it: all after it in the order of the drawing."""


@dataclass(frozen=True, slots=True)
class BranchLine:
    """A line of the drawing: its left part, and the node in it; None: lines that join or part."""

    text: str
    node: str | None = None


def branch_lines(
    nodes: Sequence[str], children: Children, glyphs: BranchGlyphs
) -> Iterator[BranchLine]:
    """The lines of a graph without circles.

    Args:
        nodes: in the order of the drawing.
        children: a node that is not in it has none.
    """
    columns: list[str | None] = []  # the node to which each column leads
    last_of = _last_descendants(nodes, children)
    is_begun = False
    for node in nodes:
        here = [at for at, leads_to in enumerate(columns) if leads_to == node]
        if len(here) > 1:
            yield BranchLine(_bend(columns, here[0], here[1:], glyphs.joins, glyphs.join, glyphs))
        for at in here[1:]:
            columns[at] = None
        if not here and is_begun:  # else it would look as if what is above led here
            yield BranchLine(_row(columns, node, glyphs).rstrip())
        is_begun = True
        column = here[0] if here else _free(columns)
        columns[column] = node
        yield BranchLine(_row(columns, node, glyphs).rstrip(), node)
        # The branch that goes on for longest stays in the node's column.
        below = sorted(children.get(node, ()), key=lambda child: -last_of[child])
        columns[column] = below[0] if below else None
        opened = []
        for child in below[1:]:
            opened.append(_free(columns, after=column))
            columns[opened[-1]] = child
        if opened:
            yield BranchLine(_bend(columns, column, opened, glyphs.parts, glyphs.part, glyphs))


def _last_descendants(nodes: Sequence[str], children: Children) -> Mapping[str, int]:
    """Node -> the place of the last node that can be reached from it."""
    last_of: dict[str, int] = {}
    for place in range(len(nodes) - 1, -1, -1):
        below = [last_of[child] for child in children.get(nodes[place], ())]
        last_of[nodes[place]] = max([place, *below])
    return last_of


def _free(columns: list[str | None], *, after: int = -1) -> int:
    """The first free column to the right of `after`; a new one if there is none."""
    for at in range(after + 1, len(columns)):
        if columns[at] is None:
            return at
    columns.append(None)
    return len(columns) - 1


def _row(columns: Sequence[str | None], node: str, glyphs: BranchGlyphs) -> str:
    """A line with a node; its other columns go through."""
    cells = {None: " ", node: glyphs.node}
    return " ".join(cells.get(leads_to, glyphs.column) for leads_to in columns)


def _bend(
    columns: Sequence[str | None],
    stem: int,
    bent: Sequence[int],
    corner: str,
    tee: str,
    glyphs: BranchGlyphs,
) -> str:
    """A line on which columns right of a stem part from it, or join it."""
    last = max(bent)
    cells = []
    for at, leads_to in enumerate(columns):
        is_crossed = stem < at < last
        if at == stem:
            cells.append(glyphs.stem)
        elif at == last:
            cells.append(corner)
        elif at in bent:
            cells.append(tee)
        elif leads_to is None:
            cells.append(glyphs.level if is_crossed else " ")
        else:
            cells.append(glyphs.crossing if is_crossed else glyphs.column)
        cells.append(glyphs.level if stem <= at < last else " ")
    return "".join(cells).rstrip()
