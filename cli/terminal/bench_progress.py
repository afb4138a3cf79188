"""How far a comparison is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cli.terminal.output import say, talk
from orchestrator.durations import shown

if TYPE_CHECKING:
    from serving.sim.compare.compare import Progress
    from serving.sim.compare.runner import Done

_PLAIN_EVERY_S = 10.0
_BAR_CELLS = 24
_ROUNDING = 1e-6  # of weights that add up to what is left
_PARTS = {
    "machine": "measuring the engine's steps",
    "capacity": "finding what fcfs drains (simulated)",
    "bounds": "finding the upper bounds (simulated)",
}


class BenchProgress:
    """Tells on stderr what is done and how long the rest takes; a context manager.

    Args:
        is_simulated: what the numbers are, or else measured.
    """

    def __init__(self, *, is_simulated: bool, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._how = "simulated" if is_simulated else "measured"
        self._clock = clock
        self._part = ""
        self._began_s = clock()
        self._said_s = float("-inf")
        self.num_done = 0
        columns = (BarColumn(_BAR_CELLS), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=talk(), transient=True)
        self._row = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if talk().is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if talk().is_terminal:
            self._bar.stop()

    def on_progress(self, progress: Progress) -> None:
        """Take note of how far it is, and say so where it is time to."""
        self.num_done = progress.num_done
        now_s = self._clock()
        if progress.part != self._part:
            self._part, self._began_s = progress.part, now_s
        told = self._told(progress, now_s - self._began_s)
        if talk().is_terminal:
            self._bar.update(
                self._row,
                description=told,
                total=progress.num_tasks,
                completed=progress.num_done,
            )
        elif now_s - self._said_s >= _PLAIN_EVERY_S or progress.num_done == progress.num_tasks:
            self._said_s = now_s
            say(told)

    def _told(self, progress: Progress, elapsed_s: float) -> str:
        parts = [f"{progress.num_done} of {progress.num_tasks}"]
        if progress.part in _PARTS:
            parts.append(_PARTS[progress.part])
        elif progress.latest is not None:
            parts.append(_described(progress.latest, self._how))
        left_s = remaining_s(progress, elapsed_s)
        if left_s is not None and progress.left_weight > _ROUNDING:
            parts.append(f"about {shown(left_s)} left")
        return ", ".join(parts)


def remaining_s(progress: Progress, elapsed_s: float) -> float | None:
    """Seconds until the part is done, at the pace so far; None as long as there is none."""
    if progress.done_weight <= 0:
        return None
    return elapsed_s * progress.left_weight / progress.done_weight


def _described(latest: Done, how: str) -> str:
    from serving.sim.compare.compare import label_of
    from serving.sim.compare.experiments import BoundExperiment, Experiment
    from serving.sim.compare.live_experiments import LiveExperiment

    task, result = latest.task, latest.result
    if isinstance(task, LiveExperiment):
        task = task.case
    assert isinstance(task, Experiment | BoundExperiment), (
        "what is done in runs is a run or a bound"
    )
    name = "upper bound"
    if isinstance(task, Experiment):
        name, result = label_of(task.policy), result["report"]
    return (
        f"{name} at {task.load:g}x, seed {task.seed}: {result['token_goodput']:,.0f} tokens/s, "
        f"{result['request_goodput']:.2f} requests/s ({how})"
    )
