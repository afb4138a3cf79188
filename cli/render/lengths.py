"""Answer lengths, and whether they stayed within their predicted bounds. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from cli.render.segments import call_names
from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE
from orchestrator.display.rows import call_name
from serving.analyzer.calibration import BOUND_INDEX, BOUND_LEVEL
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from store.records import CallKind, CallRecord, LengthSample, RunRecord, Status

_MEDIAN_INDEX = LENGTH_LEVELS.index(0.5)
_MIN_WIDTH_FOR_SOURCES = 56
_SOURCES = {
    "forest": "forest",
    "step": "recent answers",
    "limit": "nothing known",
}
"""Source of a length bound in a call's record -> its text."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class StepLengths:
    """The lengths of one step's answers, in tokens.

    Attributes:
        num_bounded: calls with a length bound.
        coverage: share of those calls with an answer within the bound; None without any.
        looseness: their mean bound / their mean length; None without any, or if all are empty.
    """

    identity: str
    num_calls: int
    median_tokens: float
    p90_tokens: float
    num_bounded: int
    coverage: float | None
    looseness: float | None


def step_lengths(samples: Sequence[LengthSample]) -> list[StepLengths]:
    """The answer lengths of each step, ordered by identity."""
    by_step: defaultdict[str, list[LengthSample]] = defaultdict(list)
    for sample in samples:
        by_step[sample.identity].append(sample)
    return [_step_lengths(identity, each) for identity, each in sorted(by_step.items())]


def steps_table(steps: Sequence[StepLengths], *, width: int, ascii_only: bool = False) -> Table:
    """One row per step."""
    glyphs = ASCII if ascii_only else UNICODE
    names = call_names({("llm", step.identity) for step in steps})
    rows = []
    for step in steps:
        held = glyphs.none if step.coverage is None else f"{step.coverage:.0%}"
        loose = glyphs.none if step.looseness is None else f"{step.looseness:.2f}"
        numbers = [f"{step.num_calls:,}", f"{step.median_tokens:,.0f}", f"{step.p90_tokens:,.0f}"]
        rows.append([Text(cell) for cell in (names["llm", step.identity], *numbers, held, loose)])
    heads = ["step", "calls", "median", "p90", "held", "bound/real"]
    gap = 2 if width >= _MIN_WIDTH_FOR_SOURCES else 1
    return named_table(heads, rows, width=width, gap=gap, texts={"step"}, glyphs=glyphs)


def steps_document(steps: Sequence[StepLengths]) -> list[dict[str, object]]:
    """The same as JSON-safe objects."""
    return [asdict(step) for step in steps]


def calls_with_source(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """The LLM calls with a recorded source of their length bound."""
    return [call for call in calls if call.kind is CallKind.LLM and call.bound_source is not None]


def held(call: CallRecord) -> bool | None:
    """Whether an answer stayed within its bound; None without a bound or an answer."""
    if call.length_bound is None or call.output_tokens is None:
        return None
    return call.output_tokens <= call.length_bound


def calls_table(
    run: RunRecord, calls: Sequence[CallRecord], *, width: int, ascii_only: bool = False
) -> Table:
    """One row per LLM call: its length bound, and the length of its answer."""
    glyphs = ASCII if ascii_only else UNICODE
    none = glyphs.none
    is_wide = width >= _MIN_WIDTH_FOR_SOURCES
    heads = ["call", "stage", "bound", "tokens", "", "bound from"]
    rows = []
    for call in calls:
        source = call.bound_source or ""
        rows.append(
            [
                Text(f"#{call.node} {call_name(run, call)}"),
                Text(f"{call.stage}"),
                Text(none if call.length_bound is None else f"{call.length_bound:,.0f}"),
                Text(none if call.output_tokens is None else f"{call.output_tokens:,}"),
                _outcome(call),
                Text(_SOURCES.get(source, source) if is_wide else source),
            ]
        )
    if not is_wide:
        heads, rows = _without(1, heads), [_without(1, row) for row in rows]
        heads[-1] = "from"
    return named_table(
        heads,
        rows,
        width=width,
        gap=2 if is_wide else 1,
        texts={"call", "", heads[-1]},
        glyphs=glyphs,
    )


def bounds_line(calls: Sequence[CallRecord]) -> Text:
    """How many of the bounds held, and how many are expected to."""
    outcomes = [held(call) for call in calls if held(call) is not None]
    if not outcomes:
        return Text("no length bounds: nothing was known about these steps", "dim")
    num_held = sum(map(bool, outcomes))
    text = f"{num_held} of {len(outcomes)} length bounds held; expected: {BOUND_LEVEL:.0%}"
    return Text(text, style="dim")


def _outcome(call: CallRecord) -> Text:
    """Whether the bound held; the call's status if it did not complete."""
    if call.status is not Status.COMPLETED:
        return Text(call.status, style="dim")
    texts = {True: Text("held", "green"), False: Text("exceeded", "red"), None: Text()}
    return texts[held(call)]


def _without(place: int, row: Sequence[C]) -> list[C]:
    return [*row[:place], *row[place + 1 :]]


def _step_lengths(identity: str, samples: Sequence[LengthSample]) -> StepLengths:
    sketch = LengthSketch.of([sample.output_tokens for sample in samples])
    bounded = [
        (sample.length_bound, sample.output_tokens)
        for sample in samples
        if sample.length_bound is not None
    ]
    bounds = sum(bound for bound, _ in bounded)
    tokens = sum(length for _, length in bounded)
    num_held = sum(length <= bound for bound, length in bounded)
    return StepLengths(
        identity,
        num_calls=len(samples),
        median_tokens=sketch.tokens[_MEDIAN_INDEX],
        p90_tokens=sketch.tokens[BOUND_INDEX],
        num_bounded=len(bounded),
        coverage=num_held / len(bounded) if bounded else None,
        looseness=bounds / tokens if tokens else None,
    )
