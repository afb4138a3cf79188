"""The search for the load at which a share of the promises is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.table import PolicySpec
from serving.sim.compare.experiments import Experiment, Task
from serving.sim.compare.promise_capacity import (
    LEAST_LOAD,
    MOST_LOAD,
    RESOLUTION,
    Kept,
    LoadSearch,
    Machines,
    PromiseCapacities,
    check_replicas,
    find_capacities,
    kept_of,
)
from serving.sim.compare.task_progress import Progress
from serving.workload_errors import InvalidWorkload
from tests.strategies import law
from tests.unit.serving.sim.bench_examples import (
    CAPACITY,
    LIMITS,
    InProcessRunner,
    fake_result,
    keeping,
    make_plan,
)


def searched(limit: float) -> LoadSearch:
    search = LoadSearch()
    for _ in range(100):
        load = search.next_load
        if load is None:
            return search
        search = search.after(load, is_kept=load <= limit)
    raise AssertionError("it does not end")


@law
@given(st.floats(LEAST_LOAD, MOST_LOAD))
def test_a_search_finds_the_limit_within_its_resolution(limit: float) -> None:
    search = searched(limit)
    assert search.kept_at <= limit < search.missed_at or search.kept_at == MOST_LOAD
    assert limit / search.kept_at <= RESOLUTION


def test_a_search_ends_beyond_its_range() -> None:
    assert searched(0.0) == LoadSearch(0.0, LEAST_LOAD)
    assert searched(math.inf) == LoadSearch(MOST_LOAD, math.inf)


def test_the_tries_that_are_left_are_known_once_a_search_is_bracketed() -> None:
    search = LoadSearch(1.0, 2.0)
    left = [search.tries_left]
    while (load := search.next_load) is not None:
        search = search.after(load, is_kept=load < 1.3)
        left.append(search.tries_left)
    assert left == list(range(len(left) - 1, -1, -1))


def test_every_policy_is_searched_on_every_number_of_machines() -> None:
    plan = make_plan("fcfs", "edf", "calm", seeds=(3, 4))
    runner = InProcessRunner(work=keeping)
    seen: list[Progress] = []
    found = find_capacities(plan, 0.9, runner, replicas=(1, 2), on_progress=seen.append)
    assert list(found.searches) == [
        Machines(policy, number) for policy in ("fcfs", "edf", "calm") for number in (1, 2)
    ]
    for machines, search in found.searches.items():
        limit = LIMITS[machines.policy] + 0.1  # nine in ten are kept there
        assert search.kept_at <= limit + 1e-3 < search.missed_at + 1e-2
        assert search.missed_at / search.kept_at <= RESOLUTION
        expected = search.kept_at * machines.replicas * CAPACITY
        assert found.programs_s(machines) == pytest.approx(expected)
    calm, fcfs = (found.searches[Machines(name, 2)].kept_at for name in ("calm", "fcfs"))
    assert found.saving(Machines("calm", 2), "fcfs") == pytest.approx(1 - fcfs / calm)
    runs = [task for task in runner.computed if isinstance(task, Experiment)]
    assert {(task.seed, task.replicas) for task in runs} == {(3, 1), (3, 2), (4, 1), (4, 2)}
    assert all(
        task.rate_per_s == pytest.approx(task.load * task.replicas * CAPACITY) for task in runs
    )
    assert len({str(task.key()) for task in runs}) == len(runs)
    assert (seen[-1].num_done, seen[-1].part) == (len(runner.computed), "runs")
    assert all(each.num_done <= each.num_tasks for each in seen[:-1])
    done = [each.done_weight for each in seen if each.part == "runs"]
    assert done == sorted(done), "what was done in earlier rounds still counts"
    assert done[-1] == pytest.approx(sum(task.weight for task in runs))
    assert seen[-1].left_weight == pytest.approx(0.0, abs=1e-6)
    [first] = [each for each in seen if each.part == "runs" and each.done_weight == 0.0]
    assert done[-1] / 2 < first.left_weight < 2 * done[-1], "later rounds are part of the estimate"


def test_programs_without_an_slo_do_not_count() -> None:
    counts = {"arrived": 100, "promised": 40, "met": 30}
    kept = kept_of([{"report": {"counts": counts}}] * 2)
    assert kept == Kept(60, 80)
    assert kept.share == 0.75
    assert kept.standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 80))
    assert math.isnan(Kept(0, 0).share)


def found_with(counts_at: Callable[[str, float], tuple[int, int]]) -> PromiseCapacities:
    """The capacities of fcfs and calm if this many promises are met and made at a load."""

    def work(task: Task) -> dict[str, Any]:
        result = fake_result(task)
        if isinstance(task, Experiment):
            met, promised = counts_at(task.policy.name, task.load)
            result["report"]["counts"] = {"arrived": 9, "promised": promised, "met": met}
        return result

    return find_capacities(make_plan("fcfs", "calm"), 0.9, InProcessRunner(work=work))


def test_a_limit_that_was_not_found_saves_nothing() -> None:
    fcfs, calm = Machines("fcfs", 1), Machines("calm", 1)
    never = found_with(lambda policy, load: (8 if policy == "fcfs" or load > 2.0 else 10, 10))
    assert never.saving(calm, "fcfs") is never.saving(fcfs, "calm") is None
    assert never.programs_s(fcfs) is never.kept(fcfs) is None
    seeds = len(never.plan.seeds)
    assert never.kept(calm) == Kept(10 * seeds, 10 * seeds)
    always = found_with(lambda policy, load: (8 if policy == "calm" and load > 2.0 else 10, 10))
    assert always.searches[fcfs] == LoadSearch(MOST_LOAD, math.inf)
    assert always.saving(calm, "fcfs") is None


def test_a_search_ends_at_a_load_without_promises() -> None:
    found = found_with(
        lambda policy, load: (8 if policy == "fcfs" else 10, 10 if load > 0.3 else 0)
    )
    assert found.searches[Machines("fcfs", 1)] == LoadSearch(0.0, 0.5, is_stopped=True)
    assert list(found.tries[Machines("fcfs", 1)]) == [1.0, 0.5, 0.25]
    assert found.searches[Machines("calm", 1)].kept_at == MOST_LOAD
    with pytest.raises(InvalidWorkload, match="no program with an SLO"):
        found_with(lambda _policy, _load: (0, 0))


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidWorkload, match="between 0 and 1"):
        find_capacities(make_plan("fcfs"), share, InProcessRunner())


@pytest.mark.parametrize("replicas", [(), (0,), (65,), (2, 2)])
def test_numbers_of_machines_that_are_none_are_refused(replicas: tuple[int, ...]) -> None:
    with pytest.raises(InvalidWorkload, match=r"machines|once"):
        check_replicas(replicas)


def test_several_machines_run_in_one_experiment_key() -> None:
    plan = make_plan("fcfs")
    one, two = (
        Experiment(
            config=plan.config,
            policy=PolicySpec("fcfs"),
            load=1.0,
            rate_per_s=1.0,
            seed=0,
            replicas=number,
        )
        for number in (1, 2)
    )
    assert one.key() != two.key()
    assert two.weight == 2 * one.weight
