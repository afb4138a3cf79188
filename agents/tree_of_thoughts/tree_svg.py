"""A search tree as an SVG picture: levels from left to right, with the way to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agents.tree_of_thoughts.solution import Node
from agents.tree_of_thoughts.tree_text import cut
from agents.tree_of_thoughts.tree_view import ShownNode, shown_tree
from patterns.svg import escaped

GAP, ROW, HEIGHT, MARGIN, CHARACTER = 40, 30, 22, 12, 6.6
"""Distance of columns and of rows, height of a thought, margin, and a character's width; pixels."""

MAX_CHARACTERS = 30
FILL = {"solved": "#c9e8c9", "dead": "#e4e4e4", "open": "#dbe7f6"}
BEST, LINE, NOTE = "#d1495b", "#b0b0b0", "#606060"


@dataclass(frozen=True, slots=True)
class _Placed:
    """A thought, or what stands for hidden ones, with its row and that of its parent.

    Attributes:
        node: None: `text` counts thoughts that are not shown.
        parent_row: None: of the root.
    """

    node: Node | None
    text: str
    depth: int
    row: float
    parent_row: float | None


def tree_svg(nodes: Sequence[Node]) -> str:
    """The picture of a tree whose nodes are in the order of their numbers.

    As in the terminal, the best thoughts are shown and the others counted.

    Args:
        nodes: the root first; a node's parent comes before it.
    """
    placed = list(_placed(shown_tree(nodes), nodes))
    box = max(len(_label(each)) for each in placed) * CHARACTER + 12
    width = round(MARGIN * 2 + (box + GAP) * max(each.depth for each in placed) + box)
    height = round(MARGIN * 2 + ROW * (max(each.row for each in placed) + 1))
    shapes = [_link(each, box) for each in placed if each.parent_row is not None]
    shapes += [_box(each, box) for each in placed]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="11">\n'
        f"<title>Tree of Thoughts: {escaped(nodes[0].move)}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _placed(root: ShownNode, nodes: Sequence[Node]) -> Iterator[_Placed]:
    """All that is drawn: leaves have a row each, others are in the middle of what follows them."""
    next_row = 0

    def place(shown: ShownNode) -> tuple[float, list[_Placed]]:
        nonlocal next_row
        node = nodes[shown.number]
        rows: list[float] = []
        drawn: list[_Placed] = []
        below: list[tuple[Node | None, str, float]] = []
        for child in shown.children:
            row, under = place(child)
            drawn += under
            rows.append(row)
            below.append((nodes[child.number], nodes[child.number].move, row))
        if shown.hidden or not shown.children:
            rows.append(next_row)
            next_row += 1
        if shown.hidden:
            below.append((None, shown.hidden, rows[-1]))
        row = (rows[0] + rows[-1]) / 2
        drawn += [_Placed(each, text, node.depth + 1, at, row) for each, text, at in below]
        return row, drawn

    row, drawn = place(root)
    yield _Placed(nodes[root.number], nodes[root.number].move, 0, row, None)
    yield from drawn


def _label(placed: _Placed) -> str:
    value = "" if placed.node is None or placed.node.value is None else f"  {placed.node.value:.2f}"
    return cut(placed.text, MAX_CHARACTERS) + value


def _link(placed: _Placed, box: float) -> str:
    assert placed.parent_row is not None, "the root follows from nothing"
    x2 = MARGIN + placed.depth * (box + GAP)
    x1, y1, y2 = x2 - GAP, _middle(placed.parent_row), _middle(placed.row)
    is_best = placed.node is not None and placed.node.is_best
    stroke = f'stroke="{BEST}" stroke-width="2"' if is_best else f'stroke="{LINE}"'
    bend = (x1 + x2) / 2
    return (
        f'<path d="M{x1:.1f},{y1:.1f} C{bend:.1f},{y1:.1f} {bend:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"'
        f' fill="none" {stroke}/>'
    )


def _box(placed: _Placed, box: float) -> str:
    x, y, node = MARGIN + placed.depth * (box + GAP), _middle(placed.row) - HEIGHT / 2, placed.node
    if node is None:
        return f'<text x="{x + 6:.1f}" y="{y + 15:.1f}" fill="{NOTE}">{escaped(placed.text)}</text>'
    edge = f'stroke="{BEST}" stroke-width="2"' if node.is_best else 'stroke="#808080"'
    value = "" if node.value is None else f"{node.value:.2f}"
    return (
        f'<g fill="#202020"><title>{escaped(node.move)}</title><rect x="{x:.1f}" y="{y:.1f}"'
        f' width="{box:.1f}" height="{HEIGHT}" rx="4" fill="{FILL[node.status]}" {edge}/>'
        f'<text x="{x + 6:.1f}" y="{y + 15:.1f}">{escaped(cut(placed.text, MAX_CHARACTERS))}</text>'
        f'<text x="{x + box - 6:.1f}" y="{y + 15:.1f}" text-anchor="end">{value}</text></g>'
    )


def _middle(row: float) -> float:
    return MARGIN + row * ROW + ROW / 2
