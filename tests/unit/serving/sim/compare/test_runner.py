"""Runner: its worker processes cache their results, and all run one code version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.experiments import Task
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.runner import ComputeAndCache, Runner, key_of
from serving.workload_errors import CodeChanged
from tests.unit.serving.sim.bench_examples import CODER, fake_result

TASKS = [CapacityExperiment(config=CODER, seed=seed) for seed in (0, 1)]


def prepare_nothing() -> None:
    """Import no scheduler: these tests need none."""


def must_not_run(task: Task) -> dict[str, Any]:
    raise AssertionError(task)


@pytest.mark.usefixtures("subprocesses")
def test_the_process_that_computes_a_result_caches_it(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, code_version())
    with Runner(cache=cache, work=fake_result, prepare=prepare_nothing) as runner:
        results = {done.task_index: done.result for done in runner.run(TASKS)}
    assert runner.code == cache.version
    assert results == {index: fake_result(task) for index, task in enumerate(TASKS)}
    assert [cache.get(key_of(task)) for task in TASKS] == [fake_result(task) for task in TASKS]


def test_a_runner_removes_files_of_interrupted_writers_when_it_starts(tmp_path: Path) -> None:
    abandoned = tmp_path / ".abandoned.part"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    with Runner(cache=ResultCache(tmp_path, "v1"), work=must_not_run, prepare=prepare_nothing):
        assert not abandoned.exists()


@pytest.mark.usefixtures("subprocesses")
def test_a_worker_of_another_code_version_raises_an_error_instead_of_computing(
    tmp_path: Path,
) -> None:
    cache = ResultCache(tmp_path / "bench", "old")
    with (
        Runner(cache=cache, work=must_not_run, prepare=prepare_nothing) as runner,
        pytest.raises(CodeChanged, match="started with version old"),
    ):
        list(runner.run(TASKS))
    assert not cache.folder.exists()


def test_the_code_version_is_checked_without_a_cache_too() -> None:
    assert Runner().code == code_version()
    assert ComputeAndCache(None, code_version(), fake_result)(TASKS[0]).result == fake_result(
        TASKS[0]
    )
    with pytest.raises(CodeChanged):
        ComputeAndCache(None, "old", must_not_run)(TASKS[0])
