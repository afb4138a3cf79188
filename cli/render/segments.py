"""A past run as a bar of segments: one per stage, proportional to its share of time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from orchestrator.display.glyphs import Glyphs
from patterns.amortization import accumulated_shares
from patterns.features import Call, calls_of
from patterns.stages import Stage
from store.printable_text import one_line

StageKind = frozenset[Call]
"""The set of a stage's distinct calls; stages of one kind are drawn alike."""

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green")
_OTHER_COLOUR = "dim"


@dataclass(frozen=True, slots=True)
class KindSummary:
    """All stages of one kind, in all patterns.

    Attributes:
        share: their share of the runs' time, weighted by the patterns' weights.
        num_calls: call -> its smallest and largest number in a stage.
    """

    kind: StageKind
    share: float
    num_calls: dict[Call, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Palette:
    """The glyph and colour of each kind; further kinds share one."""

    kinds: tuple[StageKind, ...]
    glyphs: Glyphs

    def of(self, kind: StageKind) -> tuple[str, str]:
        """A kind's glyph and its style."""
        if kind not in self.kinds:
            return self.glyphs.other, _OTHER_COLOUR
        place = self.kinds.index(kind)
        return self.glyphs.kinds[place], _COLOURS[place]


def palette_for(kinds: Sequence[KindSummary], glyphs: Glyphs) -> Palette:
    """Assigns glyphs, in the order given, to the kinds with the largest shares of time."""
    num_glyphs = len(glyphs.kinds)
    largest = sorted(kinds, key=lambda summary: -summary.share)[:num_glyphs]
    drawn = {summary.kind for summary in largest}
    return Palette(tuple(each.kind for each in kinds if each.kind in drawn), glyphs)


def summaries(patterns: Iterable[tuple[Sequence[Stage], float]]) -> list[KindSummary]:
    """The kinds of the patterns' stages, ordered by their earliest position in a run.

    Args:
        patterns: the stages and the weight, in runs, of each pattern.
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
            {call: (min(each), max(each)) for call, each in sorted(counts[kind].items())},
        )
        for kind in sorted(earliest, key=lambda kind: earliest[kind])
    ]


def shares_of(stages: Sequence[Stage]) -> list[float]:
    """The share of the run's time that each stage took; they add up to 1."""
    before, shares = 0.0, []
    for share in accumulated_shares(stages):
        shares.append(share - before)
        before = share
    return shares


def segmented(stages: Sequence[Stage], palette: Palette, cells: int) -> Text:
    """A bar of `cells` cells; a cut separates a stage from a preceding one of its kind."""
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
    """Divides cells among shares by largest remainder; each gets at least one if possible."""
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
    """Call -> name of its step or tool; with the model's name only if the models differ."""
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
