"""A run's records -> its events in order of time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from cli.reading.history import History
from cli.render.describe import STATUS_STYLES
from cli.render.event_line import EventLine
from orchestrator.display.rows import call_name
from orchestrator.display.run_text import deadline_outcome, error_of
from orchestrator.display.slack import early_or_late, slack_of
from orchestrator.durability.liveness import ORPHANED
from orchestrator.durations import shown
from store.printable_text import one_line
from store.records import CallKind, CallRecord, RunRecord, Status, StepKind, StepRecord

_CALL_KINDS = {StepKind.LLM, StepKind.TOOL}
_IN_TIME = {"met": True, "missed": False}


def event_lines(history: History) -> list[EventLine]:
    """The events of a run in order of time; its start is the first, its end the last."""
    run = history.run
    call_paths = {call.step_path for call in history.calls}
    between = list(_run_resumed(run))
    # Calls without a recorded end were lost with their process, before the run was resumed.
    lost_at_s = between[0].position[0] if between else math.inf
    for step in history.steps:
        # A call is shown by its own record, which holds more than that of its step.
        if step.kind not in _CALL_KINDS or step.path not in call_paths:
            between += _step_events(run, step)
    for call in history.calls:
        between += _call_events(run, call, lost_at_s=lost_at_s)
    return [
        _run_started(run),
        *sorted(between, key=lambda event: event.position),
        *_run_ended(history),
    ]


def _run_started(run: RunRecord) -> EventLine:
    engine = " ".join(part for part in (run.engine, "engine") if run.engine)
    parts = [
        run.flow,
        "no deadline" if run.deadline_s is None else f"deadline {shown(run.deadline_s)}",
        engine,
        run.model and f"model {run.model}",
        run.policy and f"policy {run.policy}",
    ]
    text = Text.assemble(
        "run ", (run.id, "bold"), f" began: {', '.join(one_line(part) for part in parts if part)}"
    )
    fields: dict[str, object] = {
        "run": run.id,
        "flow": run.flow,
        "started_at": run.started_at,
        "deadline_s": run.deadline_s,
        "engine": run.engine,
        "model": run.model,
        "policy": run.policy,
    }
    return EventLine(0.0, "run_started", text, fields, ("run", "started"))


def _run_resumed(run: RunRecord) -> Iterator[EventLine]:
    """The latest resumption of a run; earlier ones are not recorded."""
    if run.attempts == 1 or run.claimed_at is None:
        return
    at_s = (run.claimed_at - run.started_at).total_seconds()
    text = Text(f"run {run.id} resumed: attempt {run.attempts}")
    fields: dict[str, object] = {"run": run.id, "attempt": run.attempts}
    key = ("run", "resumed", run.attempts)
    yield EventLine(at_s, "run_resumed", text, fields, key, (at_s, 1, 0))


def _run_ended(history: History) -> Iterator[EventLine]:
    run = history.run
    if history.status == Status.RUNNING:
        return
    key = ("run", "ended", run.attempts)
    if history.status == ORPHANED:
        fields: dict[str, object] = {"run": run.id, "process_id": run.process_id, "host": run.host}
        text = Text.assemble(
            f"run {run.id} ",
            ("orphaned", STATUS_STYLES[ORPHANED]),
            f": its process ({run.process_id}) is gone, and recorded no end of the run",
        )
        yield EventLine(None, "run_orphaned", text, fields, key)
        return
    outcome = deadline_outcome(run, run.elapsed_s)
    how = {"met": " in time", "missed": " late"}.get(outcome, "")
    text = Text.assemble(f"run {run.id} ", (f"{run.status}{how}", _style(run.status, outcome)))
    if run.elapsed_s is not None:
        of = "" if run.deadline_s is None else f" of {shown(run.deadline_s)}"
        text.append(f": took {shown(run.elapsed_s)}{of}")
    text.append_text(_error_text(run))
    fields = {
        "run": run.id,
        "status": str(run.status),
        "elapsed_s": run.elapsed_s,
        "deadline_s": run.deadline_s,
        "in_time": _IN_TIME.get(outcome),
        "error_type": run.error_type,
        "error_message": run.error_message,
    }
    yield EventLine(run.elapsed_s, "run_finished", text, fields, key)


def _step_events(run: RunRecord, step: StepRecord) -> Iterator[EventLine]:
    """A step's start and, if it has ended, its end; a recorded value is a single event."""
    fields: dict[str, object] = {
        "run": run.id,
        "path": step.path,
        "name": step.name,
        "kind": str(step.kind),
        "attempt": step.attempts,
    }
    depth = step.path.count("/")
    key = ("step", step.path, step.attempts)
    if step.kind is StepKind.VALUE:
        text = Text(f"value {one_line(step.path)}", style="dim")
        position = (step.started_s, 1, depth)
        yield EventLine(step.started_s, "value_noted", text, fields, key, position)
        return
    is_question = step.kind is StepKind.INPUT
    again = f" again, attempt {step.attempts}" if step.attempts > 1 else ""
    began = f"asks: {one_line(step.name)}" if is_question else f"began{again}"
    yield EventLine(
        step.started_s,
        "input_required" if is_question else "step_started",
        Text(f"{_step_name(step)} {began}"),
        fields,
        (*key, "started"),
        (step.started_s, 1, depth),
    )
    if step.status is Status.RUNNING:
        return
    # The time of an answer is not recorded.
    is_answered = is_question and step.status is Status.COMPLETED
    ended_s = None if is_answered else step.finished_s
    text = Text.assemble(
        f"{_step_name(step)} ",
        ("answered" if is_answered else str(step.status), _style(step.status)),
        _after(step.started_s, ended_s),
        _error_text(step),
    )
    yield EventLine(
        ended_s,
        "input_answered" if is_answered else "step_finished",
        text,
        {**fields, **_end_fields(step, ended_s)},
        (*key, "ended"),
        _end_position(step.started_s, step.finished_s or step.started_s, depth),
    )


def _call_events(run: RunRecord, call: CallRecord, *, lost_at_s: float) -> Iterator[EventLine]:
    """A call's start and, if it has ended, its end."""
    ended_s = call.finished_s
    name = f"call #{call.node} {call_name(run, call)} ({call.kind})"
    due = "" if call.sub_deadline_s is None else f", due at {shown(call.sub_deadline_s)}"
    fields: dict[str, object] = {
        "run": run.id,
        "node": call.node,
        "kind": str(call.kind),
        "identity": call.identity,
        "path": call.step_path,
        "stage": call.stage,
        "sub_deadline_s": call.sub_deadline_s,
        "deadline_source": call.deadline_source,
        "engine": call.engine,
        "engine_name": call.engine_name,
        "model": call.model,
    }
    key, depth = ("call", call.node), call.step_path.count("/")
    yield EventLine(
        call.started_s,
        "call_started",
        Text(f"{name} began: stage {call.stage}{due}"),
        fields,
        (*key, "started"),
        (call.started_s, 1, depth),
    )
    if call.status is Status.RUNNING:
        return
    text = Text.assemble(
        f"{name} ",
        (str(call.status), _style(call.status)),
        _after(call.started_s, ended_s),
        _error_text(call),
        *(Text.assemble(", ", part) for part in _measurements(call)),
    )
    yield EventLine(
        ended_s,
        "call_finished",
        text,
        {
            **fields,
            **_end_fields(call, ended_s),
            "slack_s": slack_of(call.sub_deadline_s, call.finished_s),
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "output_tokens": call.output_tokens,
            "ttft_s": call.ttft_s,
            "finish_reason": call.finish_reason,
        },
        (*key, "ended"),
        _end_position(call.started_s, lost_at_s if ended_s is None else ended_s, depth),
    )


def _measurements(call: CallRecord) -> Iterator[Text]:
    """Token counts, time to first token, finish reason and slack of an ended call."""
    if call.prompt_tokens is not None:
        cached = f" ({call.cached_tokens:,} cached)" if call.cached_tokens else ""
        yield Text(f"{call.prompt_tokens:,} tokens in{cached}")
    if call.output_tokens is not None:
        yield Text(f"{call.output_tokens:,} out")
    if call.ttft_s is not None and call.kind is CallKind.LLM:
        yield Text(f"first token after {shown(call.ttft_s)}")
    if call.finish_reason not in (None, "stop"):
        yield Text(f"ended by {call.finish_reason}", style="yellow")
    slack_s = slack_of(call.sub_deadline_s, call.finished_s)
    if slack_s is not None:
        yield early_or_late(slack_s)


def _end_fields(ended: StepRecord | CallRecord, ended_s: float | None) -> dict[str, object]:
    return {
        "status": str(ended.status),
        "took_s": None if ended_s is None else ended_s - ended.started_s,
        "error_type": ended.error_type,
        "error_message": ended.error_message,
    }


def _end_position(started_s: float, ended_s: float, depth: int) -> tuple[float, int, int]:
    """Ends precede starts at the same time, inner ends first; no end precedes its own start."""
    return ended_s, (2 if ended_s == started_s else 0), -depth


def _step_name(step: StepRecord) -> str:
    return f"{'input' if step.kind is StepKind.INPUT else 'step'} {one_line(step.path)}"


def _after(started_s: float, ended_s: float | None) -> str:
    return "" if ended_s is None else f" after {shown(ended_s - started_s)}"


def _error_text(ended: RunRecord | StepRecord | CallRecord) -> Text:
    error = error_of(ended)
    return Text(f": {error}" if error else "", style="red")


def _style(status: Status, outcome: str = "") -> str:
    return "red" if outcome == "missed" else STATUS_STYLES[status]
