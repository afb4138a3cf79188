"""Tasks of a comparison spread over processes; what was computed before is not again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from serving.sim.compare import worker
from serving.sim.compare.experiments import Task
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.worker_pool import WorkerPool
from serving.workload_errors import CodeChanged


class Done(NamedTuple):
    """A task that is done.

    Attributes:
        place: of the task among those given.
        took_s: real seconds; 0 where it was kept from before.
    """

    place: int
    task: Task
    result: dict[str, Any]
    was_kept: bool
    took_s: float


class Computed(NamedTuple):
    """A result, and the real seconds that it took."""

    result: dict[str, Any]
    took_s: float


@dataclass(frozen=True, slots=True)
class Computing:
    """What a worker does with a task: compute its result, and keep it at once.

    Results are kept by the process that made them, so that whoever interrupts the owner loses
    only what was under way.

    Attributes:
        code: the version that the owner believes it runs.
    """

    cache: ResultCache | None
    code: str
    work: Callable[[Any], dict[str, Any]] = worker.work

    def __call__(self, task: Task) -> Computed:
        """Compute a task's result; raises CodeChanged where it would be that of other code."""
        if _loaded_version() != self.code:
            raise CodeChanged(self.code, _loaded_version())
        began_s = time.perf_counter()
        result = self.work(task)
        took_s = time.perf_counter() - began_s
        if self.cache is not None:
            self.cache.put(key_of(task), result)
        return Computed(result, took_s)


@dataclass(slots=True)
class Runner:
    """Runs tasks; a context manager, so that no worker outlives it.

    Args:
        jobs: most processes at once.
        cache: None: nothing is kept, and nothing kept is used.
        work, prepare, ends_at_once: as WorkerPool takes them.
    Attributes:
        code: version that every result is of: as it was when the runner was made.
    """

    jobs: int = 1
    cache: ResultCache | None = None
    work: Callable[[Any], dict[str, Any]] = worker.work
    prepare: Callable[[], None] = worker.prepare
    ends_at_once: bool = True
    code: str = field(init=False)
    _pool: WorkerPool[Task, Computed] = field(init=False)

    def __post_init__(self) -> None:
        self.code = code_version() if self.cache is None else self.cache.version
        computing = Computing(self.cache, self.code, self.work)
        self._pool = WorkerPool(
            computing, prepare=self.prepare, jobs=self.jobs, ends_at_once=self.ends_at_once
        )

    def __enter__(self) -> Self:
        if self.cache is not None:
            self.cache.remove_abandoned()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; work that comes later begins with new ones."""
        self._pool.close()

    def run(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """Do all tasks; yields those kept from before first, then the others as they end."""
        left = []
        for place, task in enumerate(tasks):
            kept = None if self.cache is None else self.cache.get(key_of(task))
            if kept is None:
                left.append(place)
            else:
                yield Done(place, task, kept, True, 0.0)
        # The longest first, so that no process is alone with one in the end.
        left.sort(key=lambda place: -tasks[place].weight)
        for index, computed in self._pool.map([tasks[place] for place in left]):
            place = left[index]
            yield Done(place, tasks[place], computed.result, False, computed.took_s)


def key_of(task: Task) -> dict[str, Any]:
    """What tells a task's result from all others of the same code."""
    return {"sort": task.sort, **task.key()}


@functools.cache
def _loaded_version() -> str:
    """The version of the code that a worker runs: as the files were once it was prepared."""
    return code_version()
