"""What is learned of every application: a line each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from cli.reading.learned import Learned
from cli.render.describe import ago
from cli.render.library import ranged
from cli.render.tables import named_table
from cli.terminal.glyphs import ASCII, UNICODE
from cli.terminal.sanitize import one_line

_LENGTHS = "answers bounded by"
_HEADS = ("application", "kept", "library", "stages", "last fit", "since", _LENGTHS)
_GIVE_WAY = (_LENGTHS, "since", "stages", "last fit")  # to the names, the first of them first
_NAME_CELLS = 24  # that others give way to; a longer name takes what is left
_ROOM_FOR_GAPS = 76


def applications_table(
    found: Sequence[Learned], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """A line for each application, with as many columns as its name leaves room for."""
    glyphs = ASCII if ascii_only else UNICODE
    cells = [_cells(learned, now=now, none=glyphs.none) for learned in found]
    heads = _shown_heads(cells, width)
    return named_table(
        heads,
        [[row[head] for head in heads] for row in cells],
        width=width,
        gap=_gap(width),
        texts={_HEADS[0], _LENGTHS},
        glyphs=glyphs,
    )


def below_applications(found: Sequence[Learned], *, now: datetime, width: int) -> list[Text]:
    """What the table has no room for where it is narrow: what bounds the answers."""
    cells = [_cells(learned, now=now, none=UNICODE.none) for learned in found]
    if _LENGTHS in _shown_heads(cells, width):
        return []
    return [
        Text.assemble(
            (one_line(learned.application), "bold"), f": answers bounded by {learned.lengths}"
        )
        for learned in found
    ]


def applications_document(found: Sequence[Learned]) -> list[dict[str, object]]:
    """The same, JSON-safe but for its times."""
    return [
        {
            "application": learned.application,
            "patterns_kept": learned.num_kept,
            "patterns_in_library": len(learned.patterns),
            "stages": learned.stage_range,
            "fitted_at": None if learned.fit is None else learned.fit.fitted_at,
            "runs_since_fit": learned.num_since,
            "lengths": {
                "source": learned.lengths.source,
                "forest_calls": learned.lengths.num_forest_calls,
                "steps": learned.lengths.num_steps,
                "steps_with_answers": learned.lengths.num_known_steps,
            },
        }
        for learned in found
    ]


def _shown_heads(cells: Sequence[Mapping[str, Text]], width: int) -> list[str]:
    """The columns beside which the names fit, or those that never give way."""
    sizes = {head: max([len(head), *(len(row[head]) for row in cells)]) for head in _HEADS}
    sizes[_HEADS[0]] = min(sizes[_HEADS[0]], _NAME_CELLS)
    heads = list(_HEADS)
    for head in _GIVE_WAY:
        if sum(sizes[head] + _gap(width) for head in heads) <= width:
            break
        heads.remove(head)
    return heads


def _gap(width: int) -> int:
    return 2 if width >= _ROOM_FOR_GAPS else 1


def _cells(learned: Learned, *, now: datetime, none: str) -> dict[str, Text]:
    """An application's cells, by the heads of their columns."""
    stages = none if learned.stage_range is None else ranged(*learned.stage_range)
    fitted = "never" if learned.fit is None else f"{ago(learned.fit.fitted_at, now)} ago"
    cells = [
        Text(one_line(learned.application), style="bold"),
        Text(f"{learned.num_kept:,}"),
        Text(f"{len(learned.patterns):,}"),
        Text(stages),
        Text(fitted),
        Text(f"{learned.num_since:,}"),
        Text(str(learned.lengths)),
    ]
    return dict(zip(_HEADS, cells, strict=True))
