"""The library of an application: past runs as bars of their stages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from cli.reading.learned import LearnedData
from cli.render.describe import ago, short_ids
from cli.render.kernels import kernel_document
from cli.render.segments import (
    KindSummary,
    Palette,
    call_names,
    palette_for,
    segmented,
    shares_of,
    summaries,
)
from orchestrator.display.glyphs import ASCII, UNICODE, Glyphs
from orchestrator.display.run_text import counted
from orchestrator.display.text_timeline import fitted, packed
from orchestrator.durations import shown
from patterns.library import KeptPattern, decayed
from store.printable_text import one_line

_MIN_WIDTH_FOR_USES = 60
_TITLE = "share of time by stage"
_CUT_OFF = "> "


def heaviest_first(patterns: Sequence[KeptPattern], now: datetime) -> list[KeptPattern]:
    """Patterns ordered by weight, then by uses, then by age; the newest first."""

    def rank(pattern: KeptPattern) -> tuple[float, float, int]:
        return pattern.weight, uses_now(pattern, now), pattern.key

    return sorted(patterns, key=rank, reverse=True)


def uses_now(pattern: KeptPattern, now: datetime) -> float:
    """The number of uses of a pattern, decayed to now."""
    return decayed(pattern.uses, now.timestamp() - pattern.used_at_s)


def total_s(pattern: KeptPattern) -> float:
    """The sum of a pattern's stage durations, in seconds."""
    return sum(stage.seconds for stage in pattern.stages)


def _time_text(pattern: KeptPattern) -> str:
    """Its duration, as a lower bound if its run was cut off."""
    return f"{_CUT_OFF if pattern.is_cut_off else ''}{shown(total_s(pattern))}"


def summary_lines(learned: LearnedData, *, now: datetime, ascii_only: bool = False) -> list[Text]:
    """The lines above the patterns: their number, their stages and the latest fit."""
    dot = f" {(ASCII if ascii_only else UNICODE).dot} "
    parts = [
        f"{counted(learned.num_kept, 'pattern')} kept",
        f"{len(learned.patterns):,} in the library",
    ]
    if learned.stage_range is not None:
        parts.append(f"{range_text(*learned.stage_range)} stages each")
    if learned.num_cut_off:
        parts.append(f"{learned.num_cut_off:,} cut off by deadlines")
    last_fit = "never fitted"
    if learned.fit is not None:
        last_fit = f"last fit {ago(learned.fit.fitted_at, now)} ago"
    return [
        Text.assemble(("application ", "dim"), (one_line(learned.application), "bold")),
        Text(dot.join(parts)),
        Text(f"{last_fit}{dot}{counted(learned.num_since, 'run')} since", style="dim"),
    ]


def library_lines(
    learned: LearnedData, *, now: datetime, width: int, limit: int, ascii_only: bool = False
) -> list[Text]:
    """One line per pattern, those of the largest weight first, and a legend of the bars.

    Args:
        width: maximum width of a line, in columns.
        limit: maximum number of patterns to draw.
    """
    glyphs = ASCII if ascii_only else UNICODE
    if not learned.patterns:
        return [Text("the library is empty", style="dim")]
    ordered = heaviest_first(learned.patterns, now)
    drawn, omitted = ordered[:limit], ordered[limit:]
    kinds = summaries((pattern.stages, pattern.weight) for pattern in learned.patterns)
    palette = palette_for(kinds, glyphs)
    head, *rows = _row_heads(learned, drawn, now=now, width=width, glyphs=glyphs)
    cells = width - len(head)
    title = _TITLE if len(_TITLE) <= cells else "stages"
    bars = [segmented(pattern.stages, palette, cells) for pattern in drawn]
    lines = [Text(f"{head}{title}", style="dim")]
    lines += [Text.assemble(row, bar) for row, bar in zip(rows, bars, strict=True)]
    if omitted:
        runs = counted(round(sum(pattern.weight for pattern in omitted)), "run")
        text = f"{len(omitted):,} more, for {runs}: increase --limit to see them"
        lines.append(Text(text, style="dim"))
    if any(pattern.is_cut_off for pattern in drawn):
        lines.append(Text(f"{_CUT_OFF}its deadline cut the run off", style="dim"))
    has_cut = any(glyphs.cut in bar.plain for bar in bars)
    return [*lines, *_legend(kinds, palette, width=width, has_cut=has_cut)]


def pattern_names(learned: LearnedData, patterns: Sequence[KeptPattern]) -> dict[int, str]:
    """Pattern key -> short id of its run, or `#key` if the run is not known."""
    known = [run_id for pattern in patterns if (run_id := learned.runs.get(pattern.key))]
    short = dict(zip(known, short_ids(known), strict=True))
    return {
        pattern.key: short.get(learned.runs.get(pattern.key) or "", f"#{pattern.key}")
        for pattern in patterns
    }


def library_document(learned: LearnedData, *, now: datetime) -> dict[str, object]:
    """The library and its kernel; JSON-safe except datetimes. The largest weights come first."""
    return {
        "application": learned.application,
        "patterns_kept": learned.num_kept,
        "patterns_in_library": len(learned.patterns),
        "patterns_cut_off": learned.num_cut_off,
        "fitted_at": None if learned.fit is None else learned.fit.fitted_at,
        "runs_since_fit": learned.num_since,
        "kernel": kernel_document(learned.kernel),
        "patterns": [
            {
                "id": pattern.key,
                "run_id": learned.runs.get(pattern.key),
                "runs": pattern.weight,
                "uses": uses_now(pattern, now),
                "used_at": datetime.fromtimestamp(pattern.used_at_s, UTC),
                "seconds": total_s(pattern),
                "cut_off": pattern.is_cut_off,
                "stages": [
                    {
                        "calls": [call._asdict() for call in stage.calls],
                        "seconds": stage.seconds,
                        "share": share,
                        "tool_seconds": stage.tool_seconds,
                        "input_tokens": stage.input_tokens,
                        "output_tokens": stage.output_tokens,
                    }
                    for stage, share in zip(pattern.stages, shares_of(pattern.stages), strict=True)
                ],
            }
            for pattern in heaviest_first(learned.patterns, now)
        ],
    }


def range_text(least: int, most: int) -> str:
    """A range such as "2-3"; a single number if both ends are equal."""
    return f"{least}" if least == most else f"{least}-{most}"


def _row_heads(
    learned: LearnedData,
    patterns: Sequence[KeptPattern],
    *,
    now: datetime,
    width: int,
    glyphs: Glyphs,
) -> list[str]:
    """The text to the left of the bars, aligned: a heading, then one line per pattern."""
    names = pattern_names(learned, patterns)
    rows = [["run", "runs", "uses", "time"]]
    rows += [
        [
            fitted(names[pattern.key], max(width // 4, 8), glyphs),
            f"{pattern.weight:,.0f}",
            f"{uses_now(pattern, now):.1f}",
            _time_text(pattern),
        ]
        for pattern in patterns
    ]
    gap = "  "
    if width < _MIN_WIDTH_FOR_USES:
        gap = " "
        for row in rows:
            del row[2]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            [
                row[0].ljust(sizes[0]),
                *(cell.rjust(size) for cell, size in zip(row[1:], sizes[1:], strict=True)),
                "",
            ]
        )
        for row in rows
    ]


def _legend(
    kinds: Sequence[KindSummary], palette: Palette, *, width: int, has_cut: bool
) -> list[Text]:
    """What the glyphs mean: each kind of stage with its calls and its share of all time."""
    glyphs = palette.glyphs
    names = call_names({call for summary in kinds for call in summary.kind})
    entries = []
    for summary in kinds:
        if summary.kind in palette.kinds:
            calls = ", ".join(
                f"{names[call]}{_times(*number, glyphs)}"
                for call, number in summary.num_calls.items()
            )
            entries.append((palette.of(summary.kind), f"{calls} {summary.share:.0%}"))
    others = [summary for summary in kinds if summary.kind not in palette.kinds]
    if others:
        share = sum(summary.share for summary in others)
        text = f"{counted(len(others), 'other kind')} {share:.0%}"
        entries.append((palette.of(others[0].kind), text))
    if has_cut:
        entries.append(((glyphs.cut, ""), "the next stage of the same kind"))
    return packed(
        [
            Text.assemble(glyph, (f" {fitted(meaning, width - 2, glyphs)}", "dim"))
            for glyph, meaning in entries
        ],
        width=width,
    )


def _times(least: int, most: int, glyphs: Glyphs) -> str:
    """How often a call is made in a stage, such as " x2-3"; "" if at most once."""
    return "" if most == 1 else f" {glyphs.times}{range_text(least, most)}"
