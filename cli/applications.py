"""What is learned of every application: a line each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from cli.describe import ago
from cli.glyphs import ASCII, UNICODE
from cli.learned import Learned
from cli.library import ranged
from cli.tables import named_table

_ROOM_FOR_LENGTHS, _ROOM_FOR_SINCE = 76, 56


def applications_table(
    found: Sequence[Learned], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """A line for each application; what bounds its answers where there is room for it."""
    glyphs = ASCII if ascii_only else UNICODE
    heads = ["application", "runs", "library", "stages", "last fit", "since", "answers bounded by"]
    if width < _ROOM_FOR_LENGTHS:
        heads.remove("answers bounded by")
    if width < _ROOM_FOR_SINCE:
        heads.remove("since")
    rows = [_cells(learned, now=now, none=glyphs.none)[: len(heads)] for learned in found]
    gap = 2 if width >= _ROOM_FOR_LENGTHS else 1
    texts = {heads[0], "answers bounded by"}
    return named_table(heads, rows, width=width, gap=gap, texts=texts, glyphs=glyphs)


def below_applications(found: Sequence[Learned], *, width: int) -> list[Text]:
    """What the table has no room for where it is narrow: what bounds the answers."""
    if width >= _ROOM_FOR_LENGTHS:
        return []
    return [
        Text.assemble((learned.application, "bold"), f": answers bounded by {learned.lengths}")
        for learned in found
    ]


def applications_document(found: Sequence[Learned]) -> list[dict[str, object]]:
    """The same, JSON-safe but for its times."""
    return [
        {
            "application": learned.application,
            "runs": learned.num_runs,
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


def _cells(learned: Learned, *, now: datetime, none: str) -> list[Text]:
    stages = none if learned.stage_range is None else ranged(*learned.stage_range)
    fitted = "never" if learned.fit is None else f"{ago(learned.fit.fitted_at, now)} ago"
    return [
        Text(learned.application, style="bold"),
        Text(f"{learned.num_runs:,}"),
        Text(f"{len(learned.patterns):,}"),
        Text(stages),
        Text(fitted),
        Text(f"{learned.num_since:,}"),
        Text(str(learned.lengths)),
    ]
