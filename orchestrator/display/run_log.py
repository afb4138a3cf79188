"""What is known of a run in this process, from its events: for pictures, without the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.display.timeline import Timeline
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    InputRequired,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    TextGenerated,
)
from store.records import CallKind, CallRecord, RunRecord, Status, StepRecord


class RunLog:
    """A run and its events so far.

    Args:
        run: its record, as of its start.
        since_start_s: the seconds since its start; None: it has ended.
    """

    def __init__(
        self,
        run: RunRecord,
        *,
        calls: Sequence[CallRecord] = (),
        steps: Sequence[StepRecord] = (),
        since_start_s: Callable[[], float] | None = None,
    ) -> None:
        self._run = run
        self._calls = tuple(calls)
        self._steps = tuple(steps)
        self._since_start_s = since_start_s
        self._events: list[Event] = []

    def restore(self, calls: Sequence[CallRecord], steps: Sequence[StepRecord]) -> None:
        """The run was resumed: these calls and steps are recorded of its executions before."""
        self._calls, self._steps = tuple(calls), tuple(steps)

    def add(self, event: Event) -> None:
        """Note an event."""
        self._events.append(event)

    def timeline(self) -> Timeline:
        """The run's timeline, so far if it is running."""
        run = self._run
        calls = {call.node: call for call in self._calls}
        steps = {step.path: step for step in self._steps}
        for event in self._events:
            match event:
                case RunFinished():
                    run = replace(
                        run,
                        status=Status(event.status),
                        elapsed_s=event.elapsed_s,
                        error_type=event.error_type,
                    )
                case CallStarted():
                    calls[event.node] = _call_of(event)
                case CallFinished() if event.node in calls:
                    calls[event.node] = _ended(calls[event.node], event)
                case StepStarted():
                    steps[event.path] = StepRecord(event.run_id, event.path, event.name, event.at_s)
                case StepFinished() if event.path in steps:
                    steps[event.path] = replace(
                        steps[event.path],
                        status=Status(event.status),
                        finished_s=event.at_s,
                        error_type=event.error_type,
                    )
                case RunStarted() | CallFinished() | StepFinished() | InputRequired():
                    pass
                case TextGenerated():
                    pass
        is_running = run.status is Status.RUNNING and self._since_start_s is not None
        now_s = self._since_start_s() if is_running and self._since_start_s else None
        return Timeline(run, tuple(calls.values()), tuple(steps.values()), now_s)


def _call_of(event: CallStarted) -> CallRecord:
    return CallRecord(
        run_id=event.run_id,
        node=event.node,
        kind=CallKind(event.kind),
        identity=event.identity,
        step_path=event.path,
        stage=event.stage,
        started_s=event.at_s,
        sub_deadline_s=event.sub_deadline_s,
        deadline_source=event.sub_deadline_source,
        length_bound=event.predicted_output_tokens,
        engine=event.engine,
        engine_name=event.engine_name,
        model=event.model,
        random_weights=event.random_weights,
    )


def _ended(call: CallRecord, event: CallFinished) -> CallRecord:
    return replace(
        call,
        status=Status(event.status),
        finished_s=event.at_s,
        prompt_tokens=event.prompt_tokens,
        output_tokens=event.output_tokens,
        finish_reason=event.finish_reason,
        error_type=event.error_type,
    )
