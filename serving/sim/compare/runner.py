"""Tasks of a comparison run in parallel processes; cached results are not computed again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from serving.policies.table import PolicySpec
from serving.sim.compare import worker
from serving.sim.compare.experiments import Task
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.worker_pool import WorkerPool
from serving.workload_errors import CodeChanged


class CompletedTask(NamedTuple):
    """A task and its result.

    Attributes:
        task_index: place of the task in the sequence given to the runner.
        duration_s: real seconds; 0 for a cached result.
    """

    task_index: int
    task: Task
    result: dict[str, Any]
    from_cache: bool
    duration_s: float


class Computed(NamedTuple):
    """A result, and the real seconds that it took."""

    result: dict[str, Any]
    duration_s: float


@dataclass(frozen=True, slots=True)
class ComputeAndCache:
    """The work of a worker process: compute a task's result and cache it at once.

    The process that computed a result writes it to the cache. So an interrupt of the parent loses
    only the tasks in progress.

    Attributes:
        code: the code version that the parent runs.
    """

    cache: ResultCache | None
    code: str
    work: Callable[[Any], dict[str, Any]] = worker.work

    def __call__(self, task: Task) -> Computed:
        """Compute a task's result; raises CodeChanged if this process runs another version."""
        if _loaded_version() != self.code:
            raise CodeChanged(self.code, _loaded_version())
        began_s = time.perf_counter()
        result = self.work(task)
        duration_s = time.perf_counter() - began_s
        key = key_of(task)
        if self.cache is not None and key is not None:
            self.cache.put(key, result)
        return Computed(result, duration_s)


@dataclass(slots=True)
class Runner:
    """Runs tasks; a context manager that ends its worker processes.

    Args:
        jobs: most processes at once.
        cache: None: results are neither stored nor reused.
        work, prepare, ends_at_once: as in WorkerPool.
    Attributes:
        code: the code version of every result, taken when the runner was created.
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
        self._pool = WorkerPool(
            ComputeAndCache(self.cache, self.code, self.work),
            prepare=self.prepare,
            jobs=self.jobs,
            ends_at_once=self.ends_at_once,
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
        """End the worker processes; a later `run` starts new ones."""
        self._pool.close()

    def run(self, tasks: Sequence[Task]) -> Iterator[CompletedTask]:
        """Run all tasks; yields cached results first, then the others as they complete."""
        uncached = []
        for index, task in enumerate(tasks):
            key = key_of(task)
            cached = None if self.cache is None or key is None else self.cache.get(key)
            if cached is None:
                uncached.append(index)
            else:
                yield CompletedTask(index, task, cached, True, 0.0)
        # The longest first, so that at the end no single process works on a long one alone.
        uncached.sort(key=lambda index: -tasks[index].weight)
        for place, computed in self._pool.map([tasks[index] for index in uncached]):
            index = uncached[place]
            yield CompletedTask(index, tasks[index], computed.result, False, computed.duration_s)


def key_of(task: Task) -> dict[str, Any] | None:
    """The cache key of a task's result, without the code version.

    None for a user's own policy: it may use any code, so its results are not cached.
    """
    policy = getattr(task, "policy", None)
    if isinstance(policy, PolicySpec) and policy.is_own:
        return None
    return {"sort": task.kind, **task.key()}


@functools.cache
def _loaded_version() -> str:
    """The code version that a worker runs: of the files when its first task started."""
    return code_version()
