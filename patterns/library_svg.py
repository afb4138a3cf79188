"""Past runs as a picture: a bar for each, divided by the share of time that its stages took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from patterns import svg
from patterns.amortization import accumulated_shares
from patterns.stages import Stage
from patterns.svg import Picture


class DrawnRun(NamedTuple):
    """A past run.

    Attributes:
        weight: the number of runs that it represents.
        is_cut_off: whether it was cut off by its deadline; its time is then drawn as a lower bound.
    """

    weight: float
    stages: Sequence[Stage]
    is_cut_off: bool = False


MAX_PATTERNS = 20
"""Most patterns that are drawn, those of the largest weight first; the others are counted."""

MAX_SEGMENTS = 200
"""Most stages of a pattern that are drawn; the rest of its bar is grey."""

_MARGIN, _HEAD, _ROW, _BAR, _LEFT, _WIDTH = 14, 58, 22, 14, 150, 560
_LEGEND_COLUMNS = 3
_DIM = 'fill-opacity="0.7"'


def patterns_picture(patterns: Sequence[DrawnRun]) -> Picture:
    """The picture of past runs, the first ones on top, and of the kinds of their stages."""
    ranked = sorted(patterns, key=lambda pattern: -pattern.weight)
    drawn = ranked[:MAX_PATTERNS]
    kinds = list(dict.fromkeys(_kind(stage) for run in drawn for stage in run.stages))
    fills = {
        kind: svg.COLOURS[at] if at < len(svg.COLOURS) else svg.GREY
        for at, kind in enumerate(kinds)
    }
    runs = sum(pattern.weight for pattern in patterns)
    heading = f"{_counted(len(patterns), 'pattern')} of {_counted(round(runs), 'run')}"
    shapes = [
        svg.label(_MARGIN, 24, heading),
        svg.label(_MARGIN, _HEAD - 8, "runs", style=_DIM),
        svg.label(_LEFT - 10, _HEAD - 8, "time", anchor="end", style=_DIM),
        svg.label(_LEFT, _HEAD - 8, "share of time by stage", style=_DIM),
    ]
    for row, run in enumerate(drawn):
        shapes += _bar(run, _HEAD + row * _ROW, fills)
    y = _HEAD + len(drawn) * _ROW + 14
    if len(ranked) > len(drawn):
        more = _counted(len(ranked) - len(drawn), "more pattern")
        shapes.append(svg.label(_MARGIN, y, more, style=_DIM))
        y += _ROW
    shapes += _legend(kinds, fills, y)
    height = y + _ROW * -(-min(len(kinds), len(svg.COLOURS) + 1) // _LEGEND_COLUMNS) + _MARGIN
    width = _LEFT + _WIDTH + _MARGIN
    return Picture(width, height, heading, tuple(shapes))


def _bar(run: DrawnRun, y: float, fills: dict[tuple[str, ...], str]) -> list[str]:
    stages = run.stages
    took = f"{sum(stage.seconds for stage in stages):,.1f} s"
    took, tip = (f"> {took}", "cut off by its deadline") if run.is_cut_off else (took, "")
    shapes = [
        svg.label(_MARGIN, y + 11, f"{run.weight:,.0f}"),
        svg.label(_LEFT - 10, y + 11, took, anchor="end", tip=tip),
        svg.box(_LEFT, y, _WIDTH, _BAR, style=f'fill="{svg.GREY}" fill-opacity="0.3"'),
    ]
    before = 0.0
    shares = accumulated_shares(stages)[:MAX_SEGMENTS] if stages else ()
    for stage, share in zip(stages, shares, strict=False):
        kind, tokens = _kind(stage), stage.input_tokens + stage.output_tokens
        tip = f"stage {stage.index}: {', '.join(kind)}; {stage.seconds:.1f} s, {tokens:,} tokens"
        width = (share - before) * _WIDTH
        style = f'fill="{fills[kind]}"'
        shapes.append(
            svg.box(_LEFT + before * _WIDTH, y, max(width - 1, 0.5), _BAR, style=style, tip=tip)
        )
        before = share
    return shapes


def _legend(
    kinds: Sequence[tuple[str, ...]], fills: dict[tuple[str, ...], str], y: float
) -> list[str]:
    shapes = []
    size = (_LEFT + _WIDTH - _MARGIN) / _LEGEND_COLUMNS
    named = [(", ".join(kind), fills[kind]) for kind in kinds[: len(svg.COLOURS)]]
    if len(kinds) > len(svg.COLOURS):
        named.append((_counted(len(kinds) - len(svg.COLOURS), "other kind"), svg.GREY))
    for at, (name, fill) in enumerate(named):
        x, top = _MARGIN + at % _LEGEND_COLUMNS * size, y + at // _LEGEND_COLUMNS * _ROW
        shapes.append(svg.box(x, top, 10, 10, style=f'fill="{fill}"'))
        shapes.append(svg.label(x + 15, top + 9, svg.fitted(name, size - 24), tip=name))
    return shapes


def _kind(stage: Stage) -> tuple[str, ...]:
    """The names of the calls of a stage; equal for stages of one kind."""
    return tuple(
        f"{call.identity} (tool)" if call.kind == "tool" else call.identity.rpartition(":")[2]
        for call in stage.calls
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
