"""The worker pool: tasks, errors, interrupts, and the end of its processes."""

from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path

import pytest

from serving.sim.compare.worker_pool import WorkerPool
from serving.workload_errors import InvalidWorkload, WorkerDied

pytestmark = pytest.mark.usefixtures("subprocesses")

_PREPARED: list[int] = []


def prepare() -> None:
    _PREPARED.append(os.getpid())


def fail_to_prepare() -> None:
    raise InvalidWorkload("worker", "none", "cannot be prepared")


def double(number: int) -> tuple[int, int, int]:
    return 2 * number, os.getpid(), len(_PREPARED)


def misbehave(how: str) -> str:
    match how:
        case "named":
            raise InvalidWorkload("load", -1, "must be above 0")
        case "unpicklable":

            class LocalError(Exception):
                pass

            raise LocalError("it cannot be pickled")
        case "dead":
            os._exit(7)
        case "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
        case "slow":
            time.sleep(600)
    return how


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_task_runs_once_on_workers_that_are_prepared_once() -> None:
    with WorkerPool(double, prepare=prepare, jobs=2) as pool:
        first = dict(pool.map(list(range(7))))
        second = dict(pool.map([10]))
    assert {index: each[0] for index, each in first.items()} == {n: 2 * n for n in range(7)}
    assert second[0][0] == 20
    answers = [*first.values(), *second.values()]
    assert len({process_id for _, process_id, _ in answers} - {os.getpid()}) <= 2
    assert {prepared for _, _, prepared in answers} == {1}


def test_without_tasks_no_worker_starts() -> None:
    with WorkerPool(double, prepare=fail_to_prepare) as pool:
        assert list(pool.map([])) == []


def test_a_worker_s_error_reaches_the_parent_and_an_unpicklable_one_as_its_message() -> None:
    with WorkerPool(misbehave, prepare=prepare) as pool:
        with pytest.raises(InvalidWorkload, match="must be above 0"):
            list(pool.map(["named"]))
        with pytest.raises(RuntimeError, match="LocalError: it cannot be pickled"):
            list(pool.map(["unpicklable"]))
    with (
        WorkerPool(double, prepare=fail_to_prepare) as pool,
        pytest.raises(InvalidWorkload, match="cannot be prepared"),
    ):
        list(pool.map([1]))


def test_a_result_of_a_failed_map_is_never_taken_for_one_of_a_later_map() -> None:
    with WorkerPool(misbehave, prepare=prepare, jobs=2) as pool:
        with pytest.raises(InvalidWorkload):
            list(pool.map(["named", "slow"]))
        assert dict(pool.map(["one", "two"])) == {0: "one", 1: "two"}


def test_a_worker_that_dies_is_an_error_with_its_exit_code() -> None:
    with (
        WorkerPool(misbehave, prepare=prepare) as pool,
        pytest.raises(WorkerDied, match="exit code 7"),
    ):
        list(pool.map(["fine", "dead"]))


def test_workers_ignore_sigint() -> None:
    with WorkerPool(misbehave, prepare=prepare) as pool:
        assert dict(pool.map(["interrupted", "fine"])) == {0: "interrupted", 1: "fine"}


def touch_file_at_exit(folder: str) -> None:
    atexit.register((Path(folder) / "ended").touch)


@pytest.mark.parametrize("ends_at_once", [True, False])
def test_a_worker_runs_its_exit_handlers_unless_it_ends_at_once(
    tmp_path: Path, ends_at_once: bool
) -> None:
    with WorkerPool(touch_file_at_exit, prepare=prepare, ends_at_once=ends_at_once) as pool:
        list(pool.map([str(tmp_path)]))
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists() is not ends_at_once


def test_closing_ends_workers_that_are_running_a_task() -> None:
    pool = WorkerPool(misbehave, prepare=prepare, jobs=2)
    results = pool.map(["fine", "slow"])
    assert next(results) == (0, "fine")
    ids = [worker.process.pid for worker in pool._workers]
    assert all(each is not None and is_alive(each) for each in ids)
    pool.close()
    assert not any(each is not None and is_alive(each) for each in ids)
    pool.close()
