"""Runs the tasks of comparisons part by part, and reports how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.sim.compare.experiments import Task
from serving.sim.compare.runner import CompletedTask, Runner


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison, or several together, are.

    Attributes:
        part: "machine" if the real engine is measured, then "capacity", then "bounds" and "runs".
        num_done, num_tasks: of all parts.
        latest: the task that completed last; None before the first one of the part.
        done_weight: sum of Task.weight over the part's tasks that were computed; cached results
            do not count.
        left_weight: sum of Task.weight over the part's tasks that have not completed, also those
            that are expected in later rounds.
    """

    part: str
    num_done: int
    num_tasks: int
    latest: CompletedTask | None
    done_weight: float
    left_weight: float


class TrackedTasks:
    """Runs tasks and reports progress.

    Attributes:
        num_done: of all parts.
    """

    def __init__(self, on_progress: Callable[[Progress], None], *, num_tasks: int = 0) -> None:
        self._num_tasks = num_tasks
        self._on_progress = on_progress
        self._part = ""
        self._done_weight = 0.0
        self._later_weight = 0.0
        self.num_done = 0

    def expect(self, num_tasks: int, *, later_weight: float = 0.0) -> None:
        """From now on, report this as the number of tasks of all parts.

        Args:
            later_weight: sum of Task.weight over the tasks that the same part will run in later
                rounds.
        """
        self._num_tasks = num_tasks
        self._later_weight = later_weight

    def run(self, part: str, runner: Runner, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The results of all tasks, in their order; a part may run in several rounds."""
        if part != self._part:
            self._part, self._done_weight = part, 0.0
        left_weight = self._later_weight + sum(task.weight for task in tasks)
        results: list[dict[str, Any]] = [{} for _ in tasks]

        def report(latest: CompletedTask | None) -> None:
            self._on_progress(
                Progress(
                    part, self.num_done, self._num_tasks, latest, self._done_weight, left_weight
                )
            )

        report(None)
        for done in runner.run(tasks):
            results[done.task_index] = done.result
            self.num_done += 1
            left_weight -= done.task.weight
            self._done_weight += 0.0 if done.from_cache else done.task.weight
            report(done)
        return results
