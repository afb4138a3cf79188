"""Tables whose first column, a name, gives way where there is no room for all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from cli.render.timeline import fitted
from cli.terminal.glyphs import Glyphs

NAME_CELLS = 8
"""What a name keeps however narrow the terminal is."""


def named_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    width: int,
    gap: int,
    texts: Collection[str],
    glyphs: Glyphs,
) -> Table:
    """A table of at most so many columns of text, as far as its numbers leave room for that.

    Args:
        gap: columns between two of the table's.
        texts: heads of what is aligned to the left; the rest, numbers, to the right.
    """
    sizes = [max([len(head), *(len(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    room = width - sum(sizes[1:]) - gap * len(sizes)
    sizes[0] = min(sizes[0], max(room, NAME_CELLS))
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for at, (head, size) in enumerate(zip(heads, sizes, strict=True)):
        align: JustifyMethod = "left" if head in texts else "right"
        shown = fitted(head, size, glyphs) if at == 0 else head
        table.add_column(shown, no_wrap=True, overflow="crop", justify=align, width=size)
    for name, *cells in rows:
        table.add_row(Text(fitted(name.plain, sizes[0], glyphs), style=name.style), *cells)
    return table
