"""A past run as a bar: a segment for each stage, as long as its share of the run's time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from cli.terminal.glyphs import Glyphs
from cli.terminal.sanitize import one_line
from patterns.amortization import accumulated_shares
from patterns.features import Call, calls_of
from patterns.stages import Stage

StageKind = frozenset[Call]
"""What a stage calls, however often: stages of one kind look alike."""

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green")
_OTHER_COLOUR = "dim"


@dataclass(frozen=True, slots=True)
class KindSummary:
    """All stages of one kind, in all patterns.

    Attributes:
        share: of the runs' time; patterns count as the runs that they stand for.
        num_calls: for each call, the fewest and the most of it in a stage.
    """

    kind: StageKind
    share: float
    num_calls: dict[Call, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Palette:
    """Which glyph and colour stands for which kind; all that it does not know look alike."""

    kinds: tuple[StageKind, ...]
    glyphs: Glyphs

    def of(self, kind: StageKind) -> tuple[str, str]:
        """A kind's glyph and its style."""
        if kind not in self.kinds:
            return self.glyphs.other, _OTHER_COLOUR
        place = self.kinds.index(kind)
        return self.glyphs.kinds[place], _COLOURS[place]


def palette_for(kinds: Sequence[KindSummary], glyphs: Glyphs) -> Palette:
    """Glyphs for the kinds that take most of the time, in the order given."""
    num = len(glyphs.kinds)
    greatest = sorted(kinds, key=lambda summary: -summary.share)[:num]
    kept = {summary.kind for summary in greatest}
    return Palette(tuple(found.kind for found in kinds if found.kind in kept), glyphs)


def summaries(patterns: Iterable[tuple[Sequence[Stage], float]]) -> list[KindSummary]:
    """The kinds of stages of patterns, in the order in which runs come to them.

    Args:
        patterns: the stages of each, and its weight in runs.
    """
    earliest: dict[StageKind, int] = {}
    shares: defaultdict[StageKind, float] = defaultdict(float)
    counts: defaultdict[StageKind, defaultdict[Call, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    total = 0.0
    for stages, weight in patterns:
        total += weight
        for place, (stage, share) in enumerate(zip(stages, shares_of(stages), strict=True)):
            kind = calls_of(stage)
            earliest[kind] = min(place, earliest.get(kind, place))
            shares[kind] += weight * share
            for call in stage.calls:
                counts[kind][call.kind, call.identity].append(call.num_calls)
    return [
        KindSummary(
            kind,
            shares[kind] / total,
            {call: (min(found), max(found)) for call, found in sorted(counts[kind].items())},
        )
        for kind in sorted(earliest, key=lambda kind: earliest[kind])
    ]


def shares_of(stages: Sequence[Stage]) -> list[float]:
    """The part of a run's time that each of its stages took; they add up to 1."""
    before, shares = 0.0, []
    for share in accumulated_shares(stages):
        shares.append(share - before)
        before = share
    return shares


def segmented(stages: Sequence[Stage], palette: Palette, cells: int) -> Text:
    """A bar of so many cells; a stage that follows one of its own kind begins with a cut."""
    bar = Text()
    before: StageKind | None = None
    for stage, size in zip(stages, apportioned(shares_of(stages), cells), strict=True):
        if not size:
            continue
        kind = calls_of(stage)
        glyph, style = palette.of(kind)
        drawn = glyph * size
        if kind == before:
            drawn = palette.glyphs.cut + drawn[1:]
        bar.append(drawn, style=style)
        before = kind
    return bar


def apportioned(shares: Sequence[float], cells: int) -> list[int]:
    """Cells for each share, by largest remainder; at least one each where there are enough."""
    least = 1 if len(shares) <= cells else 0
    exact = [share / sum(shares) * cells for share in shares]
    sizes = [max(int(size), least) for size in exact]
    excess = [size - wanted for size, wanted in zip(sizes, exact, strict=True)]
    while sum(sizes) != cells:
        if sum(sizes) < cells:
            place, step = excess.index(min(excess)), 1
        else:
            most = max(over for over, size in zip(excess, sizes, strict=True) if size > least)
            place = next(at for at, over in enumerate(excess) if over == most and sizes[at] > least)
            step = -1
        sizes[place] += step
        excess[place] += step
    return sizes


def call_names(calls: Collection[Call]) -> dict[Call, str]:
    """What calls are called: a step's or tool's name, without the model's where all share it."""
    models = {identity.rpartition(":")[0] for kind, identity in calls if kind == "llm"}
    shared = len(models) == 1
    return {
        (kind, identity): one_line(
            f"{identity} (tool)"
            if kind == "tool"
            else identity.rpartition(":")[2]
            if shared
            else identity
        )
        for kind, identity in calls
    }
