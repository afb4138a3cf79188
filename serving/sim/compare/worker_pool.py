"""Worker processes that run tasks one after another and never outlive their parent."""

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

_JOIN_TIMEOUT_S = 30.0
"""How long a worker may take to end before it is killed."""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    task_index: int | None = None  # None: idle


class WorkerPool(Generic[T, R]):
    """Processes that are started when there is work, and kept until the pool is closed.

    Workers block SIGINT: on Ctrl-C the parent closes the pool. A worker ends by itself if its
    parent is killed.

    Args:
        work, prepare: `prepare` runs once in each worker, before its first task. Both must be
            picklable by name.
        jobs: most workers.
        ends_at_once: a worker holds nothing that it must release, and ends with os._exit. Otherwise
            its interpreter finalises, which takes seconds if a large library is loaded.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        *,
        prepare: Callable[[], None],
        jobs: int = 1,
        ends_at_once: bool = True,
    ) -> None:
        assert jobs >= 1, "a pool needs at least one worker"
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
        """Run all tasks, started in their order; yields (index of the task, result) as they end.

        Raises:
            WorkerDied: a worker process ended unexpectedly, for example out of memory.
            Also the first exception that the work raises.
        """
        pending = iter(range(len(tasks)))
        for _ in range(len(self._workers), min(self._jobs, len(tasks))):
            self._workers.append(self._start())
        num_running = 0
        try:
            for worker in self._workers:
                num_running += self._assign(worker, tasks, next(pending, None))
            while num_running:
                busy = {
                    each.connection: each for each in self._workers if each.task_index is not None
                }
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    index, result = self._receive(worker)
                    num_running += self._assign(worker, tasks, next(pending, None)) - 1
                    yield index, result
        finally:
            if num_running:  # abandoned: a running task's result would be taken for a later one's
                self.close()

    def close(self) -> None:
        """End all workers: idle ones in order, busy ones by SIGTERM."""
        workers, self._workers = self._workers, []
        for worker in workers:
            if worker.task_index is None:
                worker.connection.close()
            else:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(_JOIN_TIMEOUT_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        parent_end, worker_end = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(worker_end, self._prepare, self._work, self._ends_at_once),
            daemon=True,
        )
        resource_tracker.ensure_running()  # if the first worker started it, our mask would be reset
        # A worker inherits the mask: SIGINT never reaches it; ours is delivered after the start.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        worker_end.close()
        return _Worker(process, parent_end)

    def _assign(self, worker: _Worker, tasks: Sequence[T], index: int | None) -> int:
        """Send a worker a task, or none if index is None; returns the number of tasks sent."""
        worker.task_index = index
        if index is None:
            return 0
        try:
            worker.connection.send(tasks[index])
        except OSError as cause:
            raise self._died(worker) from cause
        return 1

    def _receive(self, worker: _Worker) -> tuple[int, R]:
        """The index and result of a worker's task; raises the task's exception."""
        try:
            is_result, answer = worker.connection.recv()
        except (EOFError, OSError) as cause:
            raise self._died(worker) from cause
        assert worker.task_index is not None, "only a busy worker answers"
        if not is_result:
            raise answer
        return worker.task_index, answer

    def _died(self, worker: _Worker) -> WorkerDied:
        worker.process.join(_JOIN_TIMEOUT_S)
        return WorkerDied(worker.process.exitcode)


def _serve(
    connection: Connection,
    prepare: Callable[[], None],
    work: Callable[[Any], Any],
    ends_at_once: bool,
) -> None:
    """A worker's loop until the pipe closes: takes tasks, answers (is_result, result or error)."""
    if not ends_at_once:
        signal.signal(signal.SIGTERM, _exit_in_order)
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


def _exit_in_order(number: int, frame: FrameType | None) -> NoReturn:
    """End the process so that it releases its locks and shared memory."""
    raise SystemExit(128 + number)


def _sendable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else a RuntimeError with its type and message."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes that we pickled ourselves
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
