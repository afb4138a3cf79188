"""Why a run's stages got their sub-deadlines, and planned against real times. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.text import Text

from cli.reading.history import History
from cli.render.describe import short_ids
from cli.render.lengths import calls_with_source, held
from orchestrator.display.axis import Axis, axis_for
from orchestrator.display.glyphs import ASCII, UNICODE, Glyphs
from orchestrator.display.rows import Row, rows_of
from orchestrator.display.run_text import counted
from orchestrator.display.slack import early_or_late, slack_of
from orchestrator.display.text_timeline import bar, fitted, legend, mark_deadline, rule
from orchestrator.durations import shown
from orchestrator.learning.stage_deadlines import LEARNED
from store.records import CallRecord, MatchRecord, StageRecord

_GUTTER = 10  # cells before the bars: indent and the word "planned" or "real"
_INDENT = "  "
_MAX_SHOWN_MATCHES = 3


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage's plan, made when it began, and its real times.

    Attributes:
        row: the real times with the planned sub-deadline; None: no call of it is recorded.
    """

    plan: StageRecord
    row: Row | None
    calls: Sequence[CallRecord]

    @property
    def slack_s(self) -> float | None:
        """Sub-deadline minus end, in seconds; negative if the stage was late; None if unknown."""
        return slack_of(self.plan.sub_deadline_s, None if self.row is None else self.row.ended_s)


def planned_stages(history: History, *, glyphs: Glyphs = UNICODE) -> list[PlannedStage]:
    """The stages with a recorded plan, in order."""
    by_stage: defaultdict[int, list[CallRecord]] = defaultdict(list)
    for call in history.calls:
        by_stage[call.stage].append(call)
    stages = []
    for plan in history.stages:
        calls = by_stage[plan.stage]
        rows = rows_of(history.run, calls, glyphs=glyphs, with_calls=False)
        stages.append(PlannedStage(plan, rows[0] if rows else None, calls))
    return stages


def explanation(
    history: History, *, width: int, ascii_only: bool = False, now_s: float | None = None
) -> list[Text]:
    """For each stage: bars of the plan and of the real times, the outcome, and the source.

    Args:
        width: maximum width of the bars and of the legend, in columns.
        now_s: for a run that is still running: seconds since its start.
    """
    glyphs = ASCII if ascii_only else UNICODE
    stages = planned_stages(history, glyphs=glyphs)
    if not stages:
        reason = "no plan: the run made no calls"
        if history.calls:
            reason = "no plan is recorded: the run is older than the recording of plans"
        return [Text(reason, style="dim")]
    work_end_s = _work_end_s(history, stages, now_s)
    axis = _axis(history, work_end_s=work_end_s, cells=width - _GUTTER)
    ids = _short_run_ids(stages)
    lines = [
        Text(f"{'':{_GUTTER}}{axis.labels()}".rstrip(), style="dim"),
        Text.assemble(" " * _GUTTER, *rule(axis, glyphs)),
    ]
    before: StageRecord | None = None
    for stage in stages:
        label = stage.row.label if stage.row is not None else f"{stage.plan.stage}"
        lines.append(Text(fitted(f"stage {label}", width, glyphs), style="bold"))
        lines += _bars(stage, axis, glyphs, now_s=work_end_s)
        lines.append(_outcome_line(stage, before, glyphs))
        lines.append(_source_line(stage.plan, ids))
        before = stage.plan
    rows = [stage.row for stage in stages if stage.row is not None]
    return [*lines, *legend(history.run, rows, axis, glyphs, width)]


def plan_document(history: History) -> dict[str, object]:
    """The plans and outcomes of all stages and LLM calls; JSON-safe except datetimes."""
    return {
        "stages": [
            asdict(stage.plan)
            | {
                "calls": [
                    {"node": call.node, "kind": call.kind, "identity": call.identity}
                    for call in stage.calls
                ],
                "ended_s": None if stage.row is None else stage.row.ended_s,
                "slack_s": stage.slack_s,
            }
            for stage in planned_stages(history)
        ],
        "llm_calls": [
            {
                "node": call.node,
                "identity": call.identity,
                "stage": call.stage,
                "length_bound": call.length_bound,
                "bound_source": call.bound_source,
                "output_tokens": call.output_tokens,
                "held": held(call),
            }
            for call in calls_with_source(history.calls)
        ],
    }


def _work_end_s(history: History, stages: Sequence[PlannedStage], now_s: float | None) -> float:
    rows = [stage.row for stage in stages if stage.row is not None]
    ends = [row.ended_s if row.ended_s is not None else row.began_s for row in rows]
    return max([*ends, history.run.elapsed_s or 0.0, now_s or 0.0])


def _axis(history: History, *, work_end_s: float, cells: int) -> Axis:
    """An axis that covers the work and all sub-deadlines before the run's own deadline."""
    deadline_s = history.run.deadline_s
    dues = [plan.sub_deadline_s for plan in history.stages if plan.sub_deadline_s is not None]
    inner = [due for due in dues if deadline_s is None or due < deadline_s]
    return axis_for(work_end_s=max([work_end_s, *inner]), deadline_s=deadline_s, cells=cells)


def _bars(stage: PlannedStage, axis: Axis, glyphs: Glyphs, *, now_s: float) -> list[Text]:
    """The planned bar of a stage, if it had a sub-deadline, above the bar of its real times."""
    lines = []
    plan = stage.plan
    if plan.sub_deadline_s is not None:
        planned = [(" ", "")] * axis.cells
        due = axis.cell(plan.sub_deadline_s)
        for at in range(axis.cell(plan.began_s), due):
            planned[at] = (glyphs.planned, "cyan")
        planned[due] = (glyphs.due, "bold cyan")
        mark_deadline(planned, axis, glyphs)
        lines.append(Text.assemble((f"{_INDENT}planned ", "dim"), *planned))
    if stage.row is not None:
        cells = bar(stage.row, axis, glyphs, now_s=now_s)
        lines.append(Text.assemble((f"{_INDENT}real    ", "dim"), *cells))
    for line in lines:
        line.rstrip()
    return lines


def _outcome_line(stage: PlannedStage, before: StageRecord | None, glyphs: Glyphs) -> Text:
    """The planned share of the run's time up to the stage's end, its sub-deadline and its end."""
    plan, row, slack_s = stage.plan, stage.row, stage.slack_s
    line = Text(_INDENT)
    if plan.share is not None:
        spread = "" if plan.spread is None else f" {glyphs.spread} {plan.spread:.0%}"
        line.append(f"{plan.share:.0%}{spread} of the time by its end")
        line.append("; " if plan.sub_deadline_s is None else ": ")
    if plan.sub_deadline_s is not None:
        line.append(f"due at {shown(plan.sub_deadline_s)}")
        if before is not None and before.sub_deadline_s == plan.sub_deadline_s:
            line.append(f", the same as stage {before.stage}")
        line.append("; ")
    if row is None or row.ended_s is None:
        line.append("did not end", style="yellow")
        return line
    line.append(f"ended at {shown(row.ended_s)}")
    if slack_s is not None:
        line.append(", ").append_text(early_or_late(slack_s))
    return line


def _source_line(plan: StageRecord, ids: dict[str, str]) -> Text:
    """How the sub-deadline was found: from which past runs, those of the largest weight first."""
    if plan.source != LEARNED:
        reason = "no similar past run is known"
        if plan.sub_deadline_s is not None:
            reason = f"an even share of the time left: {reason}"
        return Text(f"{_INDENT}{reason}", style="dim")
    heaviest = sorted(plan.matches, key=lambda match: -match.weight)
    names = [f"{_name(match, ids)} {match.weight:.0%}" for match in heaviest[:_MAX_SHOWN_MATCHES]]
    num_matches = plan.num_matches or len(heaviest)  # 0: not recorded
    if num_matches > len(names):
        names.append(f"+{num_matches - len(names):,}")
    candidates = counted(plan.num_candidates, "past pattern")
    matched = f"learned from {num_matches:,} of {candidates} with a similar beginning"
    return Text(f"{_INDENT}{matched}: {', '.join(names)}", style="dim")


def _short_run_ids(stages: Sequence[PlannedStage]) -> dict[str, str]:
    """Run id -> short id of all matched runs."""
    matched = {match.run_id: None for stage in stages for match in stage.plan.matches}
    runs = [run_id for run_id in matched if run_id is not None]
    return dict(zip(runs, short_ids(runs), strict=True))


def _name(match: MatchRecord, ids: dict[str, str]) -> str:
    return f"#{match.pattern_id}" if match.run_id is None else ids[match.run_id]
