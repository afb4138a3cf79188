"""Tables that shorten their first column, a name, if the terminal is narrow. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from orchestrator.display.glyphs import Glyphs
from orchestrator.display.text_timeline import fitted

NAME_CELLS = 8
"""Minimum width of the name column, in cells."""


def named_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    width: int,
    gap: int,
    texts: Collection[str],
    glyphs: Glyphs,
) -> Table:
    """A table at most `width` cells wide, unless its other columns need more.

    Args:
        gap: cells between two columns.
        texts: headings of left-aligned columns; the others are right-aligned.
    """
    sizes = [
        max([len(heading), *(len(row[at]) for row in rows)]) for at, heading in enumerate(headings)
    ]
    room = width - sum(sizes[1:]) - gap * len(sizes)
    sizes[0] = min(sizes[0], max(room, NAME_CELLS))
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for at, (heading, size) in enumerate(zip(headings, sizes, strict=True)):
        align: JustifyMethod = "left" if heading in texts else "right"
        shown = fitted(heading, size, glyphs) if at == 0 else heading
        table.add_column(shown, no_wrap=True, overflow="crop", justify=align, width=size)
    for name, *cells in rows:
        table.add_row(Text(fitted(name.plain, sizes[0], glyphs), style=name.style), *cells)
    return table
