from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path

import pytest

from serving.sim.compare.worker_pool import WorkerPool
from serving.workload_errors import InvalidWorkload, WorkerDied

_PREPARED: list[int] = []


def prepare() -> None:
    _PREPARED.append(os.getpid())


def fail_to_prepare() -> None:
    raise InvalidWorkload("worker", "none", "cannot be prepared")


def double(number: int) -> tuple[int, int, int]:
    return 2 * number, os.getpid(), len(_PREPARED)


def trouble(what: str) -> str:
    match what:
        case "named":
            raise InvalidWorkload("load", -1, "must be above 0")
        case "foreign":

            class OfNoModule(Exception):
                pass

            raise OfNoModule("what nobody can read back")
        case "dead":
            os._exit(7)
        case "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
        case "slow":
            time.sleep(600)
    return what


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_task_is_done_once_by_workers_that_are_prepared_once() -> None:
    with WorkerPool(double, prepare=prepare, jobs=2) as pool:
        first = dict(pool.map(list(range(7))))
        second = dict(pool.map([10]))
    assert {place: each[0] for place, each in first.items()} == {n: 2 * n for n in range(7)}
    assert second[0][0] == 20
    answers = [*first.values(), *second.values()]
    assert len({process_id for _, process_id, _ in answers} - {os.getpid()}) <= 2
    assert {prepared for _, _, prepared in answers} == {1}


def test_no_worker_is_started_for_nothing() -> None:
    with WorkerPool(double, prepare=fail_to_prepare) as pool:
        assert list(pool.map([])) == []


def test_an_error_arrives_as_itself_and_one_that_cannot_travel_by_its_words() -> None:
    with WorkerPool(trouble, prepare=prepare) as pool:
        with pytest.raises(InvalidWorkload, match="must be above 0"):
            list(pool.map(["named"]))
        with pytest.raises(RuntimeError, match="OfNoModule: what nobody can read back"):
            list(pool.map(["foreign"]))
    with (
        WorkerPool(double, prepare=fail_to_prepare) as pool,
        pytest.raises(InvalidWorkload, match="cannot be prepared"),
    ):
        list(pool.map([1]))


def test_what_was_under_way_when_another_task_failed_is_never_taken_for_a_later_answer() -> None:
    with WorkerPool(trouble, prepare=prepare, jobs=2) as pool:
        with pytest.raises(InvalidWorkload):
            list(pool.map(["named", "slow"]))
        assert dict(pool.map(["one", "two"])) == {0: "one", 1: "two"}


def test_a_worker_that_dies_is_an_error_with_its_exit_code() -> None:
    with (
        WorkerPool(trouble, prepare=prepare) as pool,
        pytest.raises(WorkerDied, match="exit code 7"),
    ):
        list(pool.map(["fine", "dead"]))


def test_ctrl_c_is_the_owners_alone_to_hear() -> None:
    with WorkerPool(trouble, prepare=prepare) as pool:
        assert dict(pool.map(["interrupted", "fine"])) == {0: "interrupted", 1: "fine"}


def note_the_end(folder: str) -> None:
    atexit.register((Path(folder) / "ended").touch)


@pytest.mark.parametrize("ends_at_once", [True, False])
def test_a_worker_that_has_something_to_give_back_ends_in_order(
    tmp_path: Path, ends_at_once: bool
) -> None:
    with WorkerPool(note_the_end, prepare=prepare, ends_at_once=ends_at_once) as pool:
        list(pool.map([str(tmp_path)]))
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists() is not ends_at_once


def test_closing_ends_workers_in_the_middle_of_a_task() -> None:
    pool = WorkerPool(trouble, prepare=prepare, jobs=2)
    results = pool.map(["fine", "slow"])
    assert next(results) == (0, "fine")
    ids = [worker.process.pid for worker in pool._workers]
    assert all(each is not None and is_alive(each) for each in ids)
    pool.close()
    assert not any(each is not None and is_alive(each) for each in ids)
    pool.close()
