"""A search tree as an SVG picture: levels from left to right, with the way to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from agents.tree_of_thoughts.solution import Node

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 190, 30, 150, 22, 12
"""Distances of columns and rows, size of a thought, and margin; in pixels."""

FILL = {"solved": "#c9e8c9", "dead": "#e4e4e4", "open": "#dbe7f6"}
MAX_CHARACTERS = 20


def tree_svg(nodes: Sequence[Node]) -> str:
    """The picture of a tree whose nodes are in the order of their numbers.

    Args:
        nodes: the root first; a node's parent comes before it.
    """
    rows = _rows(nodes)
    width = MARGIN * 2 + COLUMN * max(node.depth for node in nodes) + WIDTH
    height = MARGIN * 2 + ROW * max(len({*rows}), 1)
    shapes = [_link(nodes, rows, at) for at in range(1, len(nodes))]
    shapes += [_box(node, row) for node, row in zip(nodes, rows, strict=True)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="11">\n'
        f"<title>Tree of Thoughts: {escape(nodes[0].move)}</title>\n"
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _rows(nodes: Sequence[Node]) -> list[float]:
    """The row of each node: leaves have one each, others are in the middle of what follows them."""
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(number)
    rows = [0.0] * len(nodes)
    next_row = 0.0

    def place(number: int) -> None:
        nonlocal next_row
        below = children[number]
        for child in below:
            place(child)
        if below:
            rows[number] = (rows[below[0]] + rows[below[-1]]) / 2
        else:
            rows[number] = next_row
            next_row += 1

    place(0)
    return rows


def _link(nodes: Sequence[Node], rows: Sequence[float], at: int) -> str:
    node, parent = nodes[at], nodes[at].parent
    assert parent is not None, "only the root has no parent"
    x1, y1 = MARGIN + nodes[parent].depth * COLUMN + WIDTH, _middle(rows[parent])
    x2, y2 = MARGIN + node.depth * COLUMN, _middle(rows[at])
    stroke = 'stroke="#d1495b" stroke-width="2"' if node.is_best else 'stroke="#b0b0b0"'
    bend = (x1 + x2) / 2
    return f'<path d="M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}" fill="none" {stroke}/>'


def _box(node: Node, row: float) -> str:
    x, y = MARGIN + node.depth * COLUMN, _middle(row) - HEIGHT / 2
    text = node.move if len(node.move) <= MAX_CHARACTERS else f"{node.move[:MAX_CHARACTERS]}…"
    value = "" if node.value is None else f" {node.value:.2f}"
    edge = 'stroke="#d1495b" stroke-width="2"' if node.is_best else 'stroke="#808080"'
    return (
        f'<g><title>{escape(node.move)}</title><rect x="{x}" y="{y}" width="{WIDTH}"'
        f' height="{HEIGHT}" rx="4" fill="{FILL[node.status]}" {edge}/>'
        f'<text x="{x + 6}" y="{y + 15}">{escape(text)}{value}</text></g>'
    )


def _middle(row: float) -> float:
    return MARGIN + row * ROW + ROW / 2
