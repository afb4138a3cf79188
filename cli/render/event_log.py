"""A run's records -> what happened in it, one thing after the other, in words and as data. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from cli.reading.history import History
from cli.render.describe import STATUS_STYLES, error_of, promise
from cli.render.event_line import Happening
from cli.render.timeline import call_name
from cli.terminal.sanitize import one_line
from orchestrator.durability.liveness import ORPHANED
from orchestrator.durations import shown
from store.records import CallKind, CallRecord, RunRecord, Status, StepKind, StepRecord

_AS_CALLS = {StepKind.LLM, StepKind.TOOL}
_IN_TIME = {"met": True, "missed": False}


def happenings(history: History) -> list[Happening]:
    """What happened in a run, by time; its start is the first, and its end the last."""
    run = history.run
    with_calls = {call.step_path for call in history.calls}
    between = list(_resumed(run))
    # What nobody knows the end of went down with its process, before the run was resumed.
    lost_at_s = between[0].place[0] if between else math.inf
    for step in history.steps:
        # A call is told as such, with what the journal does not know of it.
        if step.kind not in _AS_CALLS or step.path not in with_calls:
            between += _of_step(run, step)
    for call in history.calls:
        between += _of_call(run, call, lost_at_s=lost_at_s)
    return [_started(run), *sorted(between, key=lambda one: one.place), *_ended(history)]


def _started(run: RunRecord) -> Happening:
    engine = " ".join(part for part in (run.engine, "engine") if run.engine)
    parts = [
        run.flow,
        "no deadline" if run.deadline_s is None else f"deadline {shown(run.deadline_s)}",
        engine,
        run.model and f"model {run.model}",
        run.policy and f"policy {run.policy}",
    ]
    told = Text.assemble(
        "run ", (run.id, "bold"), f" began: {', '.join(one_line(part) for part in parts if part)}"
    )
    facts: dict[str, object] = {
        "run": run.id,
        "flow": run.flow,
        "started_at": run.started_at,
        "deadline_s": run.deadline_s,
        "engine": run.engine,
        "model": run.model,
        "policy": run.policy,
    }
    return Happening(0.0, "run_started", told, facts, ("run", "started"))


def _resumed(run: RunRecord) -> Iterator[Happening]:
    """The last time that a run was resumed; of those before, nothing is recorded."""
    if run.attempts == 1 or run.claimed_at is None:
        return
    at_s = (run.claimed_at - run.started_at).total_seconds()
    told = Text(f"run {run.id} resumed: attempt {run.attempts}")
    facts: dict[str, object] = {"run": run.id, "attempt": run.attempts}
    key = ("run", "resumed", run.attempts)
    yield Happening(at_s, "run_resumed", told, facts, key, (at_s, 1, 0))


def _ended(history: History) -> Iterator[Happening]:
    run = history.run
    if history.status == Status.RUNNING:
        return
    key = ("run", "ended", run.attempts)
    if history.status == ORPHANED:
        facts: dict[str, object] = {"run": run.id, "process_id": run.process_id, "host": run.host}
        told = Text.assemble(
            f"run {run.id} ",
            ("orphaned", STATUS_STYLES[ORPHANED]),
            f": its process ({run.process_id}) is gone, and did not say how the run ended",
        )
        yield Happening(None, "run_orphaned", told, facts, key)
        return
    kept = promise(run, run.elapsed_s)
    how = {"met": " in time", "missed": " late"}.get(kept, "")
    told = Text.assemble(f"run {run.id} ", (f"{run.status}{how}", _style(run.status, kept)))
    if run.elapsed_s is not None:
        of = "" if run.deadline_s is None else f" of {shown(run.deadline_s)}"
        told.append(f": took {shown(run.elapsed_s)}{of}")
    told.append_text(_because(run))
    facts = {
        "run": run.id,
        "status": str(run.status),
        "elapsed_s": run.elapsed_s,
        "deadline_s": run.deadline_s,
        "in_time": _IN_TIME.get(kept),
        "error_type": run.error_type,
        "error_message": run.error_message,
    }
    yield Happening(run.elapsed_s, "run_finished", told, facts, key)


def _of_step(run: RunRecord, step: StepRecord) -> Iterator[Happening]:
    """A step's start and, if it has ended, its end; a value is there at once."""
    facts: dict[str, object] = {
        "run": run.id,
        "path": step.path,
        "name": step.name,
        "kind": str(step.kind),
        "attempt": step.attempts,
    }
    depth = step.path.count("/")
    key = ("step", step.path, step.attempts)
    if step.kind is StepKind.VALUE:
        told = Text(f"value {one_line(step.path)}", style="dim")
        place = (step.started_s, 1, depth)
        yield Happening(step.started_s, "value_noted", told, facts, key, place)
        return
    asks = step.kind is StepKind.INPUT
    again = f" again, attempt {step.attempts}" if step.attempts > 1 else ""
    began = f"asks: {one_line(step.name)}" if asks else f"began{again}"
    yield Happening(
        step.started_s,
        "input_required" if asks else "step_started",
        Text(f"{_step_name(step)} {began}"),
        facts,
        (*key, "started"),
        (step.started_s, 1, depth),
    )
    if step.status is Status.RUNNING:
        return
    # When an answer came is not recorded: only that it did.
    answered = asks and step.status is Status.COMPLETED
    ended_s = None if answered else step.finished_s
    told = Text.assemble(
        f"{_step_name(step)} ",
        ("answered" if answered else str(step.status), _style(step.status)),
        _after(step.started_s, ended_s),
        _because(step),
    )
    yield Happening(
        ended_s,
        "input_answered" if answered else "step_finished",
        told,
        {**facts, **_end_facts(step, ended_s)},
        (*key, "ended"),
        _end_place(step.started_s, step.finished_s or step.started_s, depth),
    )


def _of_call(run: RunRecord, call: CallRecord, *, lost_at_s: float) -> Iterator[Happening]:
    """A call's start and, if it has ended, its end."""
    ended_s = call.finished_s
    name = f"call #{call.node} {call_name(run, call)} ({call.kind})"
    due = "" if call.sub_deadline_s is None else f", due at {shown(call.sub_deadline_s)}"
    facts: dict[str, object] = {
        "run": run.id,
        "node": call.node,
        "kind": str(call.kind),
        "identity": call.identity,
        "path": call.step_path,
        "stage": call.stage,
        "sub_deadline_s": call.sub_deadline_s,
        "deadline_source": call.deadline_source,
    }
    key, depth = ("call", call.node), call.step_path.count("/")
    yield Happening(
        call.started_s,
        "call_started",
        Text(f"{name} began: stage {call.stage}{due}"),
        facts,
        (*key, "started"),
        (call.started_s, 1, depth),
    )
    if call.status is Status.RUNNING:
        return
    told = Text.assemble(
        f"{name} ",
        (str(call.status), _style(call.status)),
        _after(call.started_s, ended_s),
        _because(call),
        *(Text.assemble(", ", part) for part in _measures(call)),
    )
    yield Happening(
        ended_s,
        "call_finished",
        told,
        {
            **facts,
            **_end_facts(call, ended_s),
            "slack_s": _slack_s(call),
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "output_tokens": call.output_tokens,
            "ttft_s": call.ttft_s,
            "finish_reason": call.finish_reason,
        },
        (*key, "ended"),
        _end_place(call.started_s, lost_at_s if ended_s is None else ended_s, depth),
    )


def _measures(call: CallRecord) -> Iterator[Text]:
    """What was measured of a call that has ended."""
    if call.prompt_tokens is not None:
        cached = f" ({call.cached_tokens:,} cached)" if call.cached_tokens else ""
        yield Text(f"{call.prompt_tokens:,} tokens in{cached}")
    if call.output_tokens is not None:
        yield Text(f"{call.output_tokens:,} out")
    if call.ttft_s is not None and call.kind is CallKind.LLM:
        yield Text(f"first token after {shown(call.ttft_s)}")
    if call.finish_reason not in (None, "stop"):
        yield Text(f"ended by {call.finish_reason}", style="yellow")
    slack_s = _slack_s(call)
    if slack_s is not None:
        early = slack_s >= 0
        how = f"{shown(slack_s)} early" if early else f"{shown(-slack_s)} late"
        yield Text(how, style="green" if early else "red")


def _slack_s(call: CallRecord) -> float | None:
    """How much earlier than its sub-deadline a call ended."""
    if call.sub_deadline_s is None or call.finished_s is None:
        return None
    return call.sub_deadline_s - call.finished_s


def _end_facts(ended: StepRecord | CallRecord, ended_s: float | None) -> dict[str, object]:
    return {
        "status": str(ended.status),
        "took_s": None if ended_s is None else ended_s - ended.started_s,
        "error_type": ended.error_type,
        "error_message": ended.error_message,
    }


def _end_place(started_s: float, ended_s: float, depth: int) -> tuple[float, int, int]:
    """Ends come before the starts of their moment, inner ones first, but after their own."""
    return ended_s, (2 if ended_s == started_s else 0), -depth


def _step_name(step: StepRecord) -> str:
    return f"{'input' if step.kind is StepKind.INPUT else 'step'} {one_line(step.path)}"


def _after(started_s: float, ended_s: float | None) -> str:
    return "" if ended_s is None else f" after {shown(ended_s - started_s)}"


def _because(ended: RunRecord | StepRecord | CallRecord) -> Text:
    error = error_of(ended)
    return Text(f": {error}" if error else "", style="red")


def _style(status: Status, kept: str = "") -> str:
    return "red" if kept == "missed" else STATUS_STYLES[status]
