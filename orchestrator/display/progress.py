"""The state of a run while it is executed, from its events. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.display.glyphs import UNICODE
from orchestrator.durations import shown
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    StepStarted,
)
from store.printable_text import one_line


@dataclass(slots=True)
class RunProgress:
    """The state of an executing run, from its events so far. Times are seconds from its start.

    Attributes:
        stage: the latest stage that has started; -1 before the first.
        running: node number -> call that has not ended.
        num_done: calls that completed.
    """

    run_id: str | None = None
    flow: str = ""
    deadline_s: float | None = None
    stage: int = -1
    sub_deadline_s: float | None = None
    running: dict[int, CallStarted] = field(default_factory=dict)
    num_done: int = 0
    num_failed: int = 0
    output_tokens: int = 0
    ended_s: float | None = None

    def update(self, event: Event) -> None:
        """Update the state with an event."""
        match event:
            case RunStarted():
                self.run_id, self.flow = event.run_id, one_line(event.flow)
                self.deadline_s = event.deadline_s
            case CallStarted():
                self.running[event.node] = event
                if event.stage >= self.stage:
                    self.stage, self.sub_deadline_s = event.stage, event.sub_deadline_s
            case CallFinished():
                self.running.pop(event.node, None)
                self.num_done += event.status == "completed"
                self.num_failed += event.status != "completed"
                self.output_tokens += event.output_tokens
            case RunFinished():
                self.ended_s = event.elapsed_s
            case StepStarted():
                pass

    def time_line(self, now_s: float) -> str:
        """The elapsed and the remaining time."""
        if self.deadline_s is None:
            return f"{shown(now_s)}, no deadline"
        left_s = self.deadline_s - now_s
        slack = f"{shown(left_s)} left" if left_s >= 0 else f"{shown(-left_s)} over"
        return f"{shown(now_s)} of {shown(self.deadline_s)}, {slack}"

    def stage_line(self, now_s: float) -> str:
        """The current stage, its running calls and the time to its sub-deadline."""
        if self.stage < 0:
            return "starting"
        names = Counter(_step_of(call) for call in self.running.values())
        calls = ", ".join(
            f"{name} {UNICODE.times}{count}" if count > 1 else name for name, count in names.items()
        )
        due = ""
        if self.sub_deadline_s is not None:
            left_s = self.sub_deadline_s - now_s
            due = f", due in {shown(left_s)}" if left_s >= 0 else f", due {shown(-left_s)} ago"
        return f"stage {self.stage}{f' {calls}' if calls else ''}{due}"

    def calls_line(self) -> str:
        """The numbers of calls and of output tokens."""
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        return (
            f"{len(self.running)} running, {self.num_done} done{failed}, "
            f"{self.output_tokens:,} tokens"
        )


def _step_of(call: CallStarted) -> str:
    """The name of the call's step or tool, without the model's."""
    return one_line(call.identity.rpartition(":")[2])
