"""Runner: what its processes compute is kept by them, and is all of one code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.experiments import Task
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.runner import Computing, Runner, key_of
from serving.workload_errors import CodeChanged
from tests.unit.serving.sim.bench_examples import CODER, made_up

TASKS = [CapacityExperiment(setting=CODER, seed=seed) for seed in (0, 1)]


def nothing() -> None:
    """No scheduler is needed."""


def never(task: Task) -> dict[str, Any]:
    raise AssertionError(task)


def test_a_result_is_kept_by_whoever_computed_it(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, code_version())
    with Runner(cache=cache, work=made_up, prepare=nothing) as runner:
        found = {done.place: done.result for done in runner.run(TASKS)}
    assert runner.code == cache.version
    assert found == {place: made_up(task) for place, task in enumerate(TASKS)}
    assert [cache.get(key_of(task)) for task in TASKS] == [made_up(task) for task in TASKS]


def test_whoever_begins_removes_what_writers_that_were_ended_left(tmp_path: Path) -> None:
    abandoned = tmp_path / ".abandoned.part"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    with Runner(cache=ResultCache(tmp_path, "v1"), work=never, prepare=nothing):
        assert not abandoned.exists()


def test_a_process_of_other_code_computes_nothing_and_says_so(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "bench", "the code of before")
    with (
        Runner(cache=cache, work=never, prepare=nothing) as runner,
        pytest.raises(CodeChanged, match="begun with version the code of before"),
    ):
        list(runner.run(TASKS))
    assert not cache.folder.exists()


def test_without_a_cache_results_of_other_code_are_refused_as_well() -> None:
    assert Runner().code == code_version()
    assert Computing(None, code_version(), made_up)(TASKS[0]).result == made_up(TASKS[0])
    with pytest.raises(CodeChanged):
        Computing(None, "the code of before", never)(TASKS[0])
