"""What must hold in every schedule, whatever the store does; found as plain sentences.

The monitor sees what lands in the store, in that order, and what the processes begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.events import CallStarted, Event, StepStarted
from orchestrator.testing.unreliable_store import Operation
from store.records import RunOutcome, Status, StepOutcome, StepRecord

_RUN_RECORDS = ("journal.", "calls.", "stages.", "states.record", "runs.finish", "patterns.add")
_READS = (".get", ".of_run", ".reusable", ".edges_of_run", ".length_samples")


class Monitor:
    """Follows one schedule.

    Attributes:
        violations: sentences about what must not happen.
        owner: the process that may write now; 0 before the run is recorded.
        claims: the processes that began or resumed the run, in order.
        can_be_resumed: whether the run is recorded and has no result.
        completed: the recorded outcome of each completed step.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.owner = 0
        self.claims: list[int] = []
        self.can_be_resumed = False
        self.completed: dict[str, StepOutcome | StepRecord] = {}

    def landed(self, process: int, operations: Sequence[Operation]) -> None:
        """A transaction is in the store."""
        for operation in operations:
            if operation.name in ("runs.add", "runs.resume"):
                self.owner = process
                self.claims.append(process)
                self.can_be_resumed = True
            elif self._is_record(operation.name) and process != self.owner:
                self._violate(
                    f"process {process} wrote {operation.name} while process {self.owner} had"
                    " the run"
                )
            self._note_step(operation)

    def began(self, process: int, event: Event) -> None:
        """A process emitted an event: it begins a step or a call, or has ended one."""
        if isinstance(event, StepStarted | CallStarted) and event.path in self.completed:
            self._violate(
                f"process {process} executes {event.path} again, although its outcome is recorded"
            )

    def compare_journal(self, steps: Sequence[StepRecord]) -> None:
        """All recorded outcomes are still in the store."""
        stored = {step.path: step for step in steps}
        for path, outcome in self.completed.items():
            now = stored.get(path)
            if now is None:
                self._violate(f"the recorded outcome of {path} is lost")
            elif _content(now) != _content(outcome):
                self._violate(f"the recorded outcome of {path} was replaced")

    def _note_step(self, operation: Operation) -> None:
        match operation:
            case Operation("runs.finish", [_, RunOutcome(status=Status.COMPLETED), *_]):
                self.can_be_resumed = False
            case Operation("journal.start", [StepRecord() as step, *_]):
                self._start(step)
            case Operation("journal.start_again", [StepRecord() as step, *_], True | None):
                if step.path in self.completed:
                    self._violate(f"{step.path} is recorded again, although it had completed")
                self._start(step)
            case Operation("journal.finish", [_, str() as path, StepOutcome() as outcome]):
                if outcome.status is Status.COMPLETED:
                    self.completed[path] = outcome
            case Operation("journal.forget", [_, paths, *_]):
                for path in paths:
                    self.completed.pop(path, None)

    def _start(self, step: StepRecord) -> None:
        if step.status is Status.COMPLETED:
            self.completed[step.path] = step

    def _is_record(self, name: str) -> bool:
        return name.startswith(_RUN_RECORDS) and not name.endswith(_READS)

    def _violate(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)


def _content(outcome: Any) -> tuple[object, ...]:
    return outcome.status, outcome.result, outcome.result_payload
