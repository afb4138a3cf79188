"""The rows of a run's picture: its steps and calls, or its stages if those are many. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.display.rows import Row, call_name, call_row, limited, rows_of
from store.printable_text import one_line
from store.records import CallKind, CallRecord, RunRecord, Status, StepKind, StepRecord

MAX_ROWS = 40
"""A picture of more steps and calls shows stages; of more stages, the last row is all others."""

_DRAWN_STEPS = {StepKind.STEP, StepKind.INPUT}  # calls are drawn from their own records


@dataclass(frozen=True, slots=True)
class PictureRow:
    """A bar of the picture.

    Attributes:
        kind: "llm" or "tool" of a call, "step" of anything else.
        depth: number of steps around it.
        around: start and end of the step that has only this call; they share a row.
    """

    row: Row
    kind: str
    depth: int = 0
    around: tuple[float, float | None] | None = None


def picture_rows(
    run: RunRecord, calls: Sequence[CallRecord], steps: Sequence[StepRecord]
) -> tuple[list[PictureRow], bool]:
    """The rows from top to bottom, and whether they are stages instead of steps and calls."""
    drawn = {step.path: step for step in steps if step.kind in _DRAWN_STEPS}
    if len(drawn) + len(calls) <= 2 * MAX_ROWS:
        rows = list(_below("", _children(calls, drawn), run=run, depth=0))
        if len(rows) <= MAX_ROWS:
            return rows, False
    return _stage_rows(run, calls), True


Children = Mapping[str, Sequence[StepRecord | CallRecord]]


def _children(calls: Sequence[CallRecord], steps: Mapping[str, StepRecord]) -> Children:
    """Path of a step -> the steps and calls directly within it; "" for the flow itself."""
    children: defaultdict[str, list[StepRecord | CallRecord]] = defaultdict(list)
    own_paths: list[tuple[str, StepRecord | CallRecord]] = list(steps.items())
    own_paths += [(call.step_path, call) for call in calls]
    for path, each in own_paths:
        while path := path.rpartition("/")[0]:
            if path in steps:
                break
        children[path].append(each)
    return children


def _below(path: str, children: Children, *, run: RunRecord, depth: int) -> Iterator[PictureRow]:
    """The rows of all within a step, in the order of their starts."""
    for each in sorted(children.get(path, ()), key=lambda each: each.started_s):
        if isinstance(each, CallRecord):
            yield PictureRow(call_row(each, call_name(run, each)), each.kind.value, depth)
            continue
        within = children.get(each.path, ())
        only = within[0] if len(within) == 1 else None
        if isinstance(only, CallRecord):
            row = call_row(only, one_line(each.name))
            if each.status is not Status.COMPLETED:
                row = replace(row, status=each.status)
            yield PictureRow(row, only.kind.value, depth, (each.started_s, each.finished_s))
            continue
        yield PictureRow(_step_row(each), "step", depth)
        yield from _below(each.path, children, run=run, depth=depth + 1)


def _step_row(step: StepRecord) -> Row:
    return Row(
        label=one_line(step.name),
        began_s=step.started_s,
        ended_s=step.finished_s,
        due_s=None,
        tokens=0,
        status=step.status,
    )


def _stage_rows(run: RunRecord, calls: Sequence[CallRecord]) -> list[PictureRow]:
    tools: defaultdict[int, bool] = defaultdict(lambda: True)
    for call in calls:
        tools[call.stage] &= call.kind is CallKind.TOOL
    rows = limited(rows_of(run, calls, with_calls=False), MAX_ROWS)
    kinds = ["tool" if is_tool else "llm" for _, is_tool in sorted(tools.items())]
    return [PictureRow(row, kind) for row, kind in zip(rows, kinds, strict=False)]
