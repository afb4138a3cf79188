"""A pattern graph as a picture: a column for each stage, an arrow for each dependency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from patterns import svg
from patterns.nodes import Node
from patterns.svg import Picture

MAX_STAGES, MAX_CALLS = 12, 10
"""Most stages, and calls of a stage, that are drawn; the others are counted."""

_COLUMN, _ROW, _WIDTH, _HEIGHT, _MARGIN, _HEAD = 190, 46, 150, 34, 14, 46
_FILLS = {"llm": svg.COLOURS[0], "tool": svg.COLOURS[1]}
_LINK = 'stroke="currentColor" stroke-opacity="0.35"'
_LONGEST = f'stroke="{svg.RED}" stroke-width="2"'


def graph_picture(
    nodes: Sequence[Node],
    edges: Sequence[tuple[int, int]],
    layers: Sequence[Sequence[int]],
    *,
    longest: Sequence[int],
) -> Picture:
    """The picture of a graph; the chain of calls that takes longest is red.

    Args:
        edges: (parent, child) pairs of node indexes.
        layers: the node indexes of each stage.
        longest: the node indexes of that chain, in order.
    """
    columns = [layer[:MAX_CALLS] for layer in layers[:MAX_STAGES]]
    places = {
        node: (_MARGIN + column * _COLUMN, _HEAD + row * _ROW)
        for column, members in enumerate(columns)
        for row, node in enumerate(members)
    }
    chain = set(pairwise(longest))
    drawn = [edge for edge in edges if edge[0] in places and edge[1] in places]
    shapes = []
    for edge in sorted(drawn, key=chain.__contains__):
        (x1, y1), (x2, y2) = places[edge[0]], places[edge[1]]
        style = _LONGEST if edge in chain else _LINK
        ends = (x1 + _WIDTH, y1 + _HEIGHT / 2, x2, y2 + _HEIGHT / 2)
        shapes.append(svg.curve(*ends, style=style))
    for node, (x, y) in places.items():
        shapes += _call(nodes[node], x, y, is_longest=node in longest)
    more = [
        svg.label(_MARGIN + column * _COLUMN, _HEAD + MAX_CALLS * _ROW + 12, f"and {extra} more")
        for column, layer in enumerate(layers[:MAX_STAGES])
        if (extra := len(layer) - MAX_CALLS) > 0
    ]
    heading = _heading(len(nodes), len(layers), sum(nodes[node].seconds for node in longest))
    rows = max(map(len, columns), default=0) + bool(more)
    width = _MARGIN * 2 + _COLUMN * max(len(columns) - 1, 2) + _WIDTH
    height = _HEAD + _ROW * rows + _MARGIN
    title = svg.label(_MARGIN, 24, heading)
    return Picture(width, height, f"pattern graph: {heading}", (title, *shapes, *more))


def _heading(num_calls: int, num_stages: int, seconds: float) -> str:
    if not num_calls:
        return "no calls"
    calls = f"{num_calls:,} call{'' if num_calls == 1 else 's'}"
    stages = f"{num_stages:,} stage{'' if num_stages == 1 else 's'}"
    cut = f"; the first {MAX_STAGES} stages" if num_stages > MAX_STAGES else ""
    return f"{calls} in {stages}; red: the longest chain, {seconds:.1f} s{cut}"


def _call(call: Node, x: float, y: float, *, is_longest: bool) -> list[str]:
    name = call.identity.rpartition(":")[2] if call.kind == "llm" else call.identity
    tokens = f"{call.input_tokens:,} → {call.output_tokens:,} tokens, "
    details = f"{tokens if call.kind == 'llm' else 'tool, '}{call.seconds:.1f} s"
    stroke = f'stroke="{svg.RED}" stroke-width="2"' if is_longest else 'stroke-opacity="0"'
    style = f'rx="5" fill="{_FILLS[call.kind]}" fill-opacity="0.25" {stroke}'
    small = 'font-size="10" fill-opacity="0.75"'
    return [
        svg.box(x, y, _WIDTH, _HEIGHT, style=style, tip=f"{call.identity}: {details}"),
        svg.label(x + 8, y + 14, svg.fitted(name, _WIDTH - 16)),
        svg.label(x + 8, y + 27, svg.fitted(details, _WIDTH + 8), style=small),
    ]
