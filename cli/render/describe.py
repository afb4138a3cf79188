"""The table of `ps`, and what `show` prints above and below the timeline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from cli.reading.history import History
from cli.render.questions import question_documents
from orchestrator.display.glyphs import ASCII, UNICODE
from orchestrator.display.rows import call_name
from orchestrator.display.run_text import (
    counted,
    deadline_line,
    deadline_outcome,
    error_of,
    has_random_weights,
    origin_of,
)
from orchestrator.durability.liveness import ORPHANED
from orchestrator.durability.questions import open_questions
from orchestrator.durations import shown
from orchestrator.learning.stage_deadlines import FALLBACK, LEARNED
from store.printable_text import one_line
from store.records import CallRecord, RunRecord, Status

_ID_CELLS = 8  # shortest prefix of an id; longer only if prefixes would be equal
_MIN_WIDTH_FOR_ERRORS, _MIN_WIDTH_FOR_MODELS = 120, 76

_CLIENT_DEADLINE = "deadline enforced by the client only"
"""Shown for runs on a server that did not report a deadline-aware scheduler."""
_ELASTIC_COLUMNS = {"flow": 24, "model": 28, "error": 200}
"""Columns that are shortened if the terminal is narrow -> their maximum width."""
_NAME_CELLS = 8
_SOURCE_TEXTS = {
    LEARNED: "learned from past runs",
    FALLBACK: "even shares of the time, because no similar past run is known",
}
STATUS_STYLES = {
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "yellow",
    Status.RUNNING: "cyan",
    ORPHANED: "bold yellow",
    Status.QUEUED: "blue",
    Status.DEAD: "bold red",
}


def elapsed_s(run: RunRecord, status: str, now: datetime) -> float | None:
    """Duration of a run, so far if it is running; None if unknown, as for an orphaned run."""
    if run.elapsed_s is not None:
        return run.elapsed_s
    if status == Status.RUNNING:
        return max((now - run.started_at).total_seconds(), 0.0)
    return None


def ago(moment: datetime, now: datetime) -> str:
    """The time since a moment, in a suitable unit."""
    seconds = max((now - moment).total_seconds(), 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def run_table(
    runs: Sequence[tuple[RunRecord, str]], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """One row per run with the status to show; models and errors only on wide terminals."""
    none = (ASCII if ascii_only else UNICODE).none
    ids = short_ids([run.id for run, _ in runs])
    rows = [
        _cells(run, status, short, now=now, none=none)
        for (run, status), short in zip(runs, ids, strict=True)
    ]
    names = ["run", "flow", "status", "ago", "took", "deadline", "", "model", "error"]
    if width < _MIN_WIDTH_FOR_ERRORS or not any(error_of(run) for run, _ in runs):
        names.remove("error")
    if width < _MIN_WIDTH_FOR_MODELS:
        names.remove("model")
    gap = 2 if width >= _MIN_WIDTH_FOR_MODELS else 1
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    widest = {
        name: max([len(name), *(len(row[column]) for row in rows)])
        for column, name in enumerate(names)
    }
    # Numbers and statuses are never shortened; the elastic columns share the remaining width.
    room = width - sum(widest[name] + gap for name in names if name not in _ELASTIC_COLUMNS)
    for name in names:
        cells = widest[name]
        if name in _ELASTIC_COLUMNS:
            cells = min(cells, max(room - gap, _NAME_CELLS), _ELASTIC_COLUMNS[name])
            room -= cells + gap
        align: JustifyMethod = "right" if name in ("ago", "took", "deadline") else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=align, width=cells)
    for row in rows:
        table.add_row(*row[: len(names)])
    return table


def _cells(run: RunRecord, status: str, short: str, *, now: datetime, none: str) -> list[Text]:
    """A run's row, with all columns."""
    taken_s = elapsed_s(run, status, now)
    outcome = deadline_outcome(run, taken_s)
    return [
        Text(short, style="bold"),
        Text(one_line(run.flow)),
        Text(status, style=STATUS_STYLES.get(status, "")),
        Text(ago(run.started_at, now)),
        Text(none if taken_s is None else shown(taken_s)),
        Text(none if run.deadline_s is None else shown(run.deadline_s)),
        Text(outcome, style="red" if outcome == "missed" else "green"),
        _model(run),
        Text(error_of(run), style="red"),
    ]


def below_table(runs: Sequence[tuple[RunRecord, str]], *, width: int) -> list[Text]:
    """The lines below the table: errors if it has no column for them, origins, the `*`."""
    ids = short_ids([run.id for run, _ in runs])
    lines = []
    for (run, _), short in zip(runs, ids, strict=True):
        if error_of(run) and width < _MIN_WIDTH_FOR_ERRORS:
            line = Text.assemble((short, "bold"), "  ", (error_of(run), "red"))
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        if origin_of(run):
            line = Text.assemble((short, "bold"), "  ", (origin_of(run), "dim"))
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
    if width >= _MIN_WIDTH_FOR_MODELS and any(run.random_weights for run, _ in runs):
        lines.append(Text("* random weights: the text is meaningless", style="yellow"))
    return lines


def header(history: History, *, now: datetime, ascii_only: bool = False) -> list[Text]:
    """The lines above the timeline: the run, its outcome, engine, tokens and sub-deadlines."""
    glyphs = ASCII if ascii_only else UNICODE
    run, calls = history.run, history.calls
    dot = f" {glyphs.dot} "
    title = Text.assemble(
        ("run ", "dim"),
        (run.id, "bold"),
        dot,
        one_line(run.flow),
        dot,
        (history.status, STATUS_STYLES.get(history.status, "")),
    )
    began = run.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    engine = " ".join(part for part in (run.engine, "engine") if run.engine)
    where = [part for part in (engine, run.model and f"model {run.model}") if part]
    where.append(f"policy {run.policy}" if run.policy else _CLIENT_DEADLINE)
    if run.slo_user:
        where.append(f"user {run.slo_user}")
    where.extend(f"{name}={text}" for name, text in sorted(run.tags.items()))
    where.extend(_other_engines(run, calls))
    tokens_in = sum(call.prompt_tokens or 0 for call in calls)
    tokens_out = sum(call.output_tokens or 0 for call in calls)
    stages = len({call.stage for call in calls})
    lines = [
        title,
        _deadline_line(run, elapsed_s(run, history.status, now)),
        Text(
            dot.join([f"began {began}, {ago(run.started_at, now)} ago", *map(one_line, where)]),
            style="dim",
        ),
        Text(
            f"{counted(len(calls), 'call')} in {counted(stages, 'stage')}{dot}"
            f"{tokens_in:,} tokens in, {tokens_out:,} out",
            style="dim",
        ),
    ]
    if origin_of(run):
        lines.append(Text(origin_of(run), style="dim"))
    sources = {call.stage: call.deadline_source for call in calls if call.deadline_source}
    if sources:
        hint = ""
        if LEARNED in sources.values():
            hint = f"{dot}why: orchestrate patterns explain {run.id}"
        text = f"sub-deadlines: {describe_sources(list(sources.values()))}{hint}"
        lines.append(Text(text, style="dim"))
    if run.random_weights or has_random_weights(calls):
        which = "the model" if run.random_weights else "one of the models"
        text = f"{which} has random weights: its text is meaningless, its times are real"
        lines.append(Text(text, style="yellow"))
    return lines


def _other_engines(run: RunRecord, calls: Sequence[CallRecord]) -> list[str]:
    """The engines and models beside the default ones, and how many calls each answered."""
    used = Counter((call.engine_name, call.model) for call in calls if call.model is not None)
    return [
        f"{f'engine {name} with ' if name else ''}model {model}: {counted(number, 'call')}"
        for (name, model), number in used.items()
        if name or model != run.model
    ]


def failures(history: History) -> list[Text]:
    """The run's own error, then the errors of its calls."""
    run = history.run
    lines = []
    if history.status == ORPHANED:
        text = f"its process ({run.process_id}) is gone, and recorded no end of the run"
        lines.append(Text.assemble(("orphaned: ", "bold yellow"), text))
    if error_of(run):
        lines.append(Text.assemble((f"{run.status}: ", "bold red"), error_of(run)))
    for call in history.calls:
        if call.status is Status.FAILED:
            took = "" if call.finished_s is None else f" after {_took(call)}"
            name = f"call #{call.node} {call_name(run, call)}{took}: "
            lines.append(Text.assemble((name, "red"), error_of(call)))
    num_cancelled = sum(call.status is Status.CANCELLED for call in history.calls)
    if num_cancelled:
        lines.append(
            Text(f"{counted(num_cancelled, 'call')} cancelled before the end", style="dim")
        )
    return lines


def document_of(history: History, *, now: datetime) -> dict[str, object]:
    """A run with all its records; JSON-safe except datetimes."""
    run = history.run
    taken_s = elapsed_s(run, history.status, now)
    return {
        "run": run_document(run, history.status, now=now),
        "in_time": {"met": True, "missed": False}.get(deadline_outcome(run, taken_s)),
        "questions": question_documents(run, open_questions(run, history.steps)),
        "steps": [asdict(step) for step in history.steps],
        "calls": [asdict(call) for call in history.calls],
        "edges": [{"parent": edge.parent, "child": edge.child} for edge in history.edges],
        "stages": [asdict(stage) for stage in history.stages],
    }


def run_document(run: RunRecord, status: str, *, now: datetime) -> dict[str, object]:
    """A run with the status to show; JSON-safe except datetimes."""
    derived = {
        "status": status,
        "elapsed_s": elapsed_s(run, status, now),
        "deadline_kept_by": "engine" if run.policy else "client",
        "tags": dict(run.tags),
        "forked_from": None if run.forked_from is None else dict(run.forked_from),
    }
    return asdict(run) | derived


def describe_sources(sources: Sequence[str]) -> str:
    """How a run's sub-deadlines were found.

    Args:
        sources: the source of each stage's sub-deadline; not empty.
    """
    counts = Counter(sources)
    if counts.keys() == {FALLBACK}:
        return _SOURCE_TEXTS[FALLBACK]
    if len(counts) == 1:
        return _SOURCE_TEXTS.get(sources[0], sources[0])
    texts = {**_SOURCE_TEXTS, FALLBACK: "even shares"}
    return ", ".join(
        f"{texts.get(source, source)} in {number} of {counted(len(sources), 'stage')}"
        for source, number in sorted(counts.items(), reverse=True)
    )


def short_ids(ids: Sequence[str]) -> list[str]:
    """Prefixes of equal length of the ids, long enough to be distinct."""
    size = _ID_CELLS
    while len({run_id[:size] for run_id in ids}) < len(set(ids)):
        size += 1
    return [run_id[:size] for run_id in ids]


def _deadline_line(run: RunRecord, taken_s: float | None) -> Text:
    head, mark, verdict = deadline_line(run, taken_s).partition(": ")
    style = "green" if deadline_outcome(run, taken_s) == "met" else "bold red"
    return Text.assemble(head, (mark + verdict, style))


def _model(run: RunRecord) -> Text:
    if not run.random_weights:
        return Text(one_line(run.model))
    return Text.assemble(("*", "bold yellow"), one_line(run.model))


def _took(call: CallRecord) -> str:
    assert call.finished_s is not None
    return shown(call.finished_s - call.started_s)
