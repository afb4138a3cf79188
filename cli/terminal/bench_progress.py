"""Progress of a comparison: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cli.terminal.output import say, stderr_console
from orchestrator.durations import shown

if TYPE_CHECKING:
    from serving.sim.compare.runner import CompletedTask
    from serving.sim.compare.task_progress import Progress

_PLAIN_EVERY_S = 10.0
_BAR_CELLS = 24
_ROUNDING = 1e-6  # a remaining weight up to this is a rounding error of the sum, not work
_PARTS = {
    "machine": "measuring the engine's steps",
    "capacity": "measuring the capacity under fcfs (simulated)",
    "bounds": "computing the upper bounds (simulated)",
}


class BenchProgress:
    """Shows on stderr what is done and how long the rest will take; a context manager.

    Args:
        is_simulated: whether the results are simulated; otherwise they are measured.
        names_workloads: whether to name the workload of each result.
    """

    def __init__(
        self,
        *,
        is_simulated: bool,
        names_workloads: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._how = "simulated" if is_simulated else "measured"
        self._names_workloads = names_workloads
        self._clock = clock
        self._part = ""
        self._began_s = clock()
        self._printed_s = float("-inf")
        self.num_done = 0
        columns = (BarColumn(_BAR_CELLS), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=stderr_console(), transient=True)
        self._row = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if stderr_console().is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if stderr_console().is_terminal:
            self._bar.stop()

    def on_progress(self, progress: Progress) -> None:
        """Show the progress; without a terminal, only if a line is due."""
        self.num_done = progress.num_done
        now_s = self._clock()
        if progress.part != self._part:
            self._part, self._began_s = progress.part, now_s
        text = self._text_of(progress, now_s - self._began_s)
        if stderr_console().is_terminal:
            self._bar.update(
                self._row,
                description=text,
                total=progress.num_tasks,
                completed=progress.num_done,
            )
        elif now_s - self._printed_s >= _PLAIN_EVERY_S or progress.num_done == progress.num_tasks:
            self._printed_s = now_s
            say(text)

    def _text_of(self, progress: Progress, elapsed_s: float) -> str:
        parts = [f"{progress.num_done} of {progress.num_tasks}"]
        if progress.part in _PARTS:
            parts.append(_PARTS[progress.part])
        elif progress.latest is not None:
            latest = _result_text(progress.latest, self._how, with_workload=self._names_workloads)
            parts.append(latest)
        left_s = remaining_s(progress, elapsed_s)
        if left_s is not None and progress.left_weight > _ROUNDING:
            parts.append(f"about {shown(left_s)} left")
        return ", ".join(parts)


def remaining_s(progress: Progress, elapsed_s: float) -> float | None:
    """Estimated seconds until the part is done, at the rate so far; None before any result."""
    if progress.done_weight <= 0:
        return None
    return elapsed_s * progress.left_weight / progress.done_weight


def _result_text(latest: CompletedTask, how: str, *, with_workload: bool) -> str:
    from serving.sim.compare.compare import label_of
    from serving.sim.compare.experiments import BoundExperiment, Experiment
    from serving.sim.compare.live_experiments import LiveExperiment

    task, result = latest.task, latest.result
    if isinstance(task, LiveExperiment):
        task = task.experiment
    assert isinstance(task, Experiment | BoundExperiment), "other tasks belong to other parts"
    name = "upper bound"
    if isinstance(task, Experiment):
        name, result = label_of(task.policy), result["report"]
        name += f" on {task.replicas} machines" if task.replicas > 1 else ""
    if with_workload:
        name = f"{task.config.source.name}, {name}"
    return (
        f"{name} at {task.load:.4g}x, seed {task.seed}: {result['token_goodput']:,.0f} tokens/s, "
        f"{result['request_goodput']:.2f} requests/s ({how})"
    )
