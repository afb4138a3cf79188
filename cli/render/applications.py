"""The table of `patterns list`: what is learned about each application. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from cli.reading.learned import LearnedData
from cli.render.describe import ago
from cli.render.library import range_text
from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE
from store.printable_text import one_line

_LENGTHS = "length bounds from"
_HEADINGS = ("application", "kept", "library", "stages", "last fit", "since", _LENGTHS)
_OPTIONAL = (_LENGTHS, "since", "stages", "last fit")
"""Columns that are left out, in this order, if the terminal is too narrow for the names."""
_NAME_CELLS = 24  # longer names do not cause columns to be left out
_MIN_WIDTH_FOR_GAPS = 76


def applications_table(
    applications: Sequence[LearnedData], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """One row per application; narrow terminals get fewer columns."""
    glyphs = ASCII if ascii_only else UNICODE
    cells = [_cells(learned, now=now, none=glyphs.none) for learned in applications]
    headings = _shown_headings(cells, width)
    return named_table(
        headings,
        [[row[heading] for heading in headings] for row in cells],
        width=width,
        gap=_gap(width),
        texts={_HEADINGS[0], _LENGTHS},
        glyphs=glyphs,
    )


def below_applications(
    applications: Sequence[LearnedData], *, now: datetime, width: int
) -> list[Text]:
    """Lines below a table without the column of length bounds: the bounds' sources."""
    cells = [_cells(learned, now=now, none=UNICODE.none) for learned in applications]
    if _LENGTHS in _shown_headings(cells, width):
        return []
    return [
        Text.assemble((one_line(learned.application), "bold"), f": {_LENGTHS} {learned.lengths}")
        for learned in applications
    ]


def applications_document(applications: Sequence[LearnedData]) -> list[dict[str, object]]:
    """The same as JSON objects; JSON-safe except datetimes."""
    return [
        {
            "application": learned.application,
            "patterns_kept": learned.num_kept,
            "patterns_in_library": len(learned.patterns),
            "patterns_cut_off": learned.num_cut_off,
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
        for learned in applications
    ]


def _shown_headings(cells: Sequence[Mapping[str, Text]], width: int) -> list[str]:
    """The headings of the columns that leave room for the names."""
    sizes = {
        heading: max([len(heading), *(len(row[heading]) for row in cells)]) for heading in _HEADINGS
    }
    sizes[_HEADINGS[0]] = min(sizes[_HEADINGS[0]], _NAME_CELLS)
    headings = list(_HEADINGS)
    for heading in _OPTIONAL:
        if sum(sizes[heading] + _gap(width) for heading in headings) <= width:
            break
        headings.remove(heading)
    return headings


def _gap(width: int) -> int:
    return 2 if width >= _MIN_WIDTH_FOR_GAPS else 1


def _cells(learned: LearnedData, *, now: datetime, none: str) -> dict[str, Text]:
    """An application's row: heading -> cell."""
    stages = none if learned.stage_range is None else range_text(*learned.stage_range)
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
    return dict(zip(_HEADINGS, cells, strict=True))
