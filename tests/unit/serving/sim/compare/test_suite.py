"""The suite: its entries, that it runs them like single comparisons, and what it reports."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.compare import Goodputs, compare
from serving.sim.compare.experiments import Experiment
from serving.sim.compare.result_cache import ResultCache
from serving.sim.compare.suite import MIN_WINDOW_S, SUITE, compare_suite, suite_plans
from serving.sim.compare.suite_report import Ratios, ratio, report_of, summary_of
from serving.sim.compare.task_progress import Progress
from serving.sim.workloads.families import FAMILIES
from serving.sim.workloads.workloads import WORKLOADS
from tests.unit.serving.sim.bench_examples import (
    CODER,
    HAND_MADE,
    InProcessRunner,
    hand_made,
    make_plan,
)

FEW = ("coder", "tiny", "long_agents")


def test_the_suite_has_all_kinds_of_work_under_conditions_that_are_known() -> None:
    assert len(SUITE) >= 16
    assert set(FAMILIES) <= set(SUITE) <= set(WORKLOADS)
    plans = suite_plans(make_plan())
    assert list(plans) == list(SUITE)
    for name, plan in plans.items():
        assert plan.config.source.name == name
        assert plan.config.prefix_caching is SUITE[name].prefix_caching
    assert plans["long_agents"].config.prefix_caching
    assert plans["code_completion"].config.named_arrivals in ("gamma", "burst")
    assert plans["day"].config.named_arrivals == "day"


def test_a_factor_on_the_time_changes_window_and_warm_up_but_no_window_becomes_too_short() -> None:
    for window_s, expected_s in ((600.0, 60.0), (100.0, MIN_WINDOW_S), (5.0, 5.0)):
        config = suite_plans(make_plan(config=replace(CODER, window_s=window_s)))["tiny"].config
        assert config.window_s == pytest.approx(expected_s)
        assert config.warmup_s == pytest.approx(0.1 * CODER.warmup_s)
    config = suite_plans(make_plan())["long_agents"].config
    assert (config.window_s, config.warmup_s) == (2 * CODER.window_s, 2 * CODER.warmup_s)


def test_a_suite_gives_the_comparisons_that_its_workloads_have_alone() -> None:
    plans = suite_plans(make_plan("fcfs", "edf"), ("long_agents", "coder"))
    together = compare_suite(plans, InProcessRunner())
    assert list(together) == ["coder", "long_agents"]  # the suite's order
    for name, plan in plans.items():
        alone = compare(plan, InProcessRunner())
        assert together[name].outcomes == alone.outcomes
        assert together[name].bounds == alone.bounds
        assert together[name].capacity_programs_s == alone.capacity_programs_s
        assert together[name].plan == plan


def test_a_suite_keeps_its_results_and_shares_them_with_single_comparisons(
    tmp_path: Path,
) -> None:
    cache = ResultCache(tmp_path, "v1")
    plans = suite_plans(make_plan("fcfs"), FEW)
    compare(plans["coder"], InProcessRunner(cache=cache))
    first, second = InProcessRunner(cache=cache), InProcessRunner(cache=cache)
    compare_suite(plans, first)
    computed = [task for task in first.computed if isinstance(task, Experiment)]
    assert {task.config.source.name for task in computed} == {"tiny", "long_agents"}
    compare_suite(plans, second)
    assert second.computed == []


def test_progress_of_a_suite_counts_the_tasks_of_all_its_plans() -> None:
    reports: list[Progress] = []
    plans = suite_plans(make_plan(), FEW)
    compare_suite(plans, InProcessRunner(), on_progress=reports.append)
    num_tasks = sum(plan.num_tasks for plan in plans.values())
    assert {each.num_tasks for each in reports} == {num_tasks}
    assert [each.num_done for each in reports if each.latest] == list(range(1, num_tasks + 1))
    assert list(dict.fromkeys(each.part for each in reports)) == ["capacity", "runs"]


def test_the_capacity_of_long_agents_is_measured_on_fewer_programs() -> None:
    runner = InProcessRunner()
    compare_suite(suite_plans(make_plan("fcfs"), FEW), runner)
    sizes = {
        task.config.source.name: task.num_programs
        for task in runner.computed
        if isinstance(task, CapacityExperiment)
    }
    assert sizes == {"coder": 400, "tiny": 400, "long_agents": 24}


INF = math.inf


def test_rows_compare_the_reference_with_the_best_rival_in_each_goodput_fcfs_and_the_bound() -> (
    None
):
    report = report_of(HAND_MADE)
    assert report.reference == "calm"
    one, two, three = report.rows
    assert one.goodputs == Goodputs(300, 3)
    assert one.best_rivals == ("edf", "fcfs")
    assert one.to_best_rival == Ratios(1.5, 0.75)
    assert one.to_fcfs == Ratios(3.0, 0.75)
    assert one.of_bound == Ratios(0.5, 0.5)
    assert two.to_best_rival == Ratios(INF, 2.0)
    assert two.to_fcfs == Ratios(INF, INF)
    assert three.to_best_rival == Ratios(0.0, 1.0)
    assert three.of_bound == Ratios(0.0, 0.0)
    assert report.goodputs["two", 1.0, "edf"] == Goodputs(0, 1)
    assert report.bounds["one", 1.0] == Goodputs(600, 6)


def test_summaries_are_worst_median_and_geometric_mean_with_ratios_cut_to_limits() -> None:
    report = report_of(HAND_MADE)
    tokens = report.summary("to_best_rival", "tokens", 1.0)
    assert tokens is not None
    assert (tokens.worst, tokens.worst_workload, tokens.median) == (0.0, "three", 1.5)
    assert tokens.geometric_mean == pytest.approx((1.5 * 100 * 0.01) ** (1 / 3))
    assert tokens.num_cut == 2
    both = report.summary("to_best_rival", "mean", None)
    assert both is not None
    # Per workload the mean of the two ratios, 1.125, inf and 0.5; then the geometric mean.
    assert both.geometric_mean == pytest.approx((1.125 * 100 * 0.5) ** (1 / 3))
    assert (both.worst, both.worst_workload, both.median) == (0.5, "three", 1.125)


def test_the_summary_over_loads_is_over_all_workloads_at_all_loads() -> None:
    comparisons = compare_suite(suite_plans(make_plan("edf", "fcfs"), FEW), InProcessRunner())
    report = report_of(comparisons)
    assert report.loads == (0.7, 2.0)
    means = [report.summary("to_best_rival", "mean", load) for load in (*report.loads, None)]
    values = [each.geometric_mean for each in means if each is not None]
    assert values[2] == pytest.approx(math.sqrt(values[0] * values[1]))


def test_without_calm_the_last_policy_is_compared_and_without_others_nothing_is() -> None:
    report = report_of({"one": hand_made({"fcfs": (1, 1), "edf": (2, 2)}, None)})
    assert report.reference == "edf"
    assert report.rows[0].of_bound is None
    assert report.summary("of_bound", "tokens", 1.0) is None
    alone = report_of({"one": hand_made({"fcfs": (1, 1)}, None)}).rows[0]
    assert (alone.to_best_rival, alone.best_rivals, alone.to_fcfs) == (None, (), None)


@pytest.mark.parametrize(
    ("value", "by", "expected"), [(3, 2, 1.5), (0, 0, 1.0), (1, 0, INF), (0, 2, 0.0)]
)
def test_a_ratio_of_zeros_is_one(value: float, by: float, expected: float) -> None:
    assert ratio(value, by) == expected


def test_a_summary_of_one_ratio_is_that_ratio() -> None:
    assert summary_of([("one", 1.25)]) == (1.25, "one", 1.25, pytest.approx(1.25), 0)
