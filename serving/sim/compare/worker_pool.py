"""Worker processes that take tasks one after the other, and never outlive their owner."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from serving.engine.setup.parent_process import end_with_parent
from serving.workload_errors import WorkerDied

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE_S = 30.0
"""How long a worker may take to end."""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    doing: int | None = None


class WorkerPool(Generic[T, R]):
    """Processes that are started when there is work, and kept until the pool is closed.

    Workers do not hear Ctrl-C: their owner does, and closes the pool. One whose owner was killed
    ends by itself.

    Args:
        prepare: done once in each worker, before its first task; both must be picklable by name.
        jobs: most workers.
        ends_at_once: a worker has nothing to give back at its end; otherwise it takes itself apart
            in order, which with a large library loaded takes seconds.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        *,
        prepare: Callable[[], None],
        jobs: int = 1,
        ends_at_once: bool = True,
    ) -> None:
        assert jobs >= 1, "somebody has to do it"
        self._work = work
        self._prepare = prepare
        self._jobs = jobs
        self._ends_at_once = ends_at_once
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def map(self, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Do all tasks, begun in their order; yields (place of the task, result) as they end.

        Raises:
            WorkerDied: a worker process ended by itself, such as for want of memory.
            And what the work raises, from where it happened first.
        """
        left = iter(range(len(tasks)))
        for _ in range(len(self._workers), min(self._jobs, len(tasks))):
            self._workers.append(self._start())
        under_way = 0
        try:
            for worker in self._workers:
                under_way += self._give(worker, tasks, next(left, None))
            while under_way:
                busy = {each.connection: each for each in self._workers if each.doing is not None}
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    place, result = self._take(worker)
                    under_way += self._give(worker, tasks, next(left, None)) - 1
                    yield place, result
        finally:
            if under_way:  # left early: what is still computed would be taken for a later answer
                self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing; those that have nothing to do end in order."""
        workers, self._workers = self._workers, []
        for worker in workers:
            if worker.doing is None:
                worker.connection.close()
            else:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(_PATIENCE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._prepare, self._work, self._ends_at_once), daemon=True
        )
        resource_tracker.ensure_running()  # starting it with the first worker would end our mask
        # A worker inherits the mask, so that no Ctrl-C reaches it even while it starts; ours waits.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker, tasks: Sequence[T], place: int | None) -> int:
        """Give a worker a task; how many it was given."""
        worker.doing = place
        if place is None:
            return 0
        try:
            worker.connection.send(tasks[place])
        except OSError as cause:
            raise self._died(worker) from cause
        return 1

    def _take(self, worker: _Worker) -> tuple[int, R]:
        try:
            is_result, answer = worker.connection.recv()
        except (EOFError, OSError) as cause:
            raise self._died(worker) from cause
        assert worker.doing is not None, "who answers was given a task"
        if not is_result:
            raise answer
        return worker.doing, answer

    def _died(self, worker: _Worker) -> WorkerDied:
        worker.process.join(_PATIENCE_S)
        return WorkerDied(worker.process.exitcode)


def _serve(
    connection: Connection,
    prepare: Callable[[], None],
    work: Callable[[Any], Any],
    ends_at_once: bool,
) -> None:
    """A worker's life: tasks in, results or errors out, until the owner hangs up."""
    if not ends_at_once:
        signal.signal(signal.SIGTERM, _leave)
    end_with_parent()
    failure: Exception | None = None
    try:
        prepare()
    except Exception as error:
        failure = error
    while True:
        try:
            task = connection.recv()
        except EOFError:
            break
        try:
            if failure is not None:
                raise failure
            answer: tuple[bool, Any] = (True, work(task))
        except Exception as error:
            answer = (False, _sendable(error))
        connection.send(answer)
    if ends_at_once:
        os._exit(0)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process so that what it holds (locks, memory shared with others) is given back."""
    raise SystemExit(128 + number)


def _sendable(error: Exception) -> Exception:
    """An error that reaches the owner: itself, or its words where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes, a moment old
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
