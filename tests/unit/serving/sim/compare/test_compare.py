"""A comparison: which tasks it runs, what it caches, what it rejects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import CAPACITY_SEEDS, CapacityExperiment
from serving.sim.compare.compare import Goodputs, Run, compare, label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import BoundExperiment, Experiment
from serving.sim.compare.live_experiments import LiveExperiment, MachineTask
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.runner import key_of
from serving.sim.compare.task_progress import Progress
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.workloads.load_generator import Source
from serving.workload_errors import CodeChanged, InvalidWorkload
from tests.unit.serving.sim.bench_examples import (
    CAPACITY,
    CODER,
    InProcessRunner,
    fake_result,
    make_comparison,
    make_plan,
)

GOODPUTS = ("token_goodput", "request_goodput")


def test_every_policy_load_and_seed_runs_once_and_outcomes_are_in_this_order() -> None:
    runner = InProcessRunner()
    comparison = compare(make_plan("fcfs", "edf"), runner)
    expected = [
        Run(policy, load, seed)
        for policy in ("fcfs", "edf")
        for load in (0.7, 2.0)
        for seed in (0, 1)
    ]
    assert list(comparison.outcomes) == expected
    assert list(comparison.bounds) == [(load, seed) for load in (0.7, 2.0) for seed in (0, 1)]
    assert sum(isinstance(task, Experiment) for task in runner.computed) == len(expected)
    assert comparison.goodputs("edf", 2.0) == [Goodputs(600.0, 6.0), Goodputs(601.0, 6.01)]
    assert comparison.bounds_at(2.0) == [Goodputs(10_000.0, 100.0)] * 2


def test_loads_are_multiples_of_the_capacity_averaged_over_its_seeds() -> None:
    runner = InProcessRunner()
    assert compare(make_plan(), runner).capacity_programs_s == pytest.approx(CAPACITY)
    experiments = [
        task for task in runner.computed if isinstance(task, Experiment | BoundExperiment)
    ]
    assert {(task.load, round(task.rate_per_s, 9)) for task in experiments} == {
        (0.7, round(0.7 * CAPACITY, 9)),
        (2.0, 2.0 * CAPACITY),
    }
    assert {task.seed for task in runner.computed if isinstance(task, CapacityExperiment)} == set(
        CAPACITY_SEEDS
    )


def test_a_plan_without_bounds_computes_none() -> None:
    comparison = make_comparison(with_bound=False)
    assert comparison.bounds == {}
    assert comparison.bounds_at(0.7) == []


def test_cached_results_are_not_computed_again_and_give_the_same_comparison(
    tmp_path: Path,
) -> None:
    cache = ResultCache(tmp_path, "v1")
    first, second = InProcessRunner(cache=cache), InProcessRunner(cache=cache)
    computed, cached = compare(make_plan("fcfs"), first), compare(make_plan("fcfs"), second)
    assert first.computed
    assert second.computed == []
    assert computed.outcomes == cached.outcomes
    third = InProcessRunner(cache=cache)
    compare(make_plan("fcfs", "edf"), third)
    assert {type(task) for task in third.computed} == {Experiment}
    assert {task.policy.name for task in third.computed if isinstance(task, Experiment)} == {"edf"}


@pytest.mark.parametrize(
    "changes",
    [
        {"window_s": 21.0},
        {"warmup_s": 6.0},
        {"arrivals": "burst"},
        {"slo_scale": 0.5},
        {"predictions": "oracle"},
        {"length_bias": 2.0},
        {"future_bias": 2.0},
        {"unsteadiness": 1.0},
        {"slots": 128},
        {"step_tokens": 1024},
        {"prefix_caching": True},
        {"source": Source.generator("chatbot")},
    ],
)
def test_every_field_of_a_config_is_part_of_the_cache_key(changes: dict[str, object]) -> None:
    experiment = Experiment(
        config=CODER, policy=PolicySpec("fcfs"), load=1.0, rate_per_s=2.0, seed=0
    )
    other = replace(experiment, config=replace(CODER, **changes))  # type: ignore[arg-type]
    assert key_of(experiment) != key_of(other)
    for different in (
        replace(experiment, policy=PolicySpec("edf")),
        replace(experiment, seed=1),
        replace(experiment, rate_per_s=2.1),
        BoundExperiment(config=CODER, load=1.0, rate_per_s=2.0, seed=0),
        CapacityExperiment(config=CODER, seed=0),
    ):
        assert key_of(different) != key_of(experiment)
        json.dumps(key_of(different), allow_nan=False)


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "an infinite count": lambda result: result | {"trace_repeats": math.inf},
    "a report of two fields": lambda result: (
        result | {"report": {name: result["report"][name] for name in GOODPUTS}}
    ),
    "a capacity that is no number": lambda result: dict.fromkeys(result, math.nan),
    "nothing": lambda _: {},
}
"""Damages of a cached result that is still JSON under the right key."""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_cached_results_that_were_changed_are_computed_again(
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = ResultCache(tmp_path, "v1")
    before = compare(make_plan("fcfs"), InProcessRunner(cache=cache))
    num_changed = 0
    for path in tmp_path.iterdir():
        document = json.loads(path.read_bytes())
        with suppress(KeyError):
            document["result"] = damage(document["result"])
            path.write_text(json.dumps(document))
            num_changed += 1
    runner = InProcessRunner(cache=cache)
    after = compare(make_plan("fcfs"), runner)
    assert (after.outcomes, after.bounds) == (before.outcomes, before.bounds)
    assert after.capacity_programs_s == before.capacity_programs_s
    assert len(runner.computed) == num_changed > 0
    assert caplog.text.count("computing it again") == num_changed
    again = InProcessRunner(cache=cache)
    compare(make_plan("fcfs"), again)
    assert again.computed == []


def test_a_comparison_records_its_code_version_and_rejects_a_runner_of_another(
    tmp_path: Path,
) -> None:
    cache = ResultCache(tmp_path, "v1")
    assert compare(make_plan("fcfs"), InProcessRunner(cache=cache)).code == "v1"
    assert make_comparison("fcfs").code == code_version()
    live = make_plan("fcfs", live=LiveSettings())
    with pytest.raises(CodeChanged, match="started with version v1, and a worker process runs"):
        compare(live, InProcessRunner(cache=cache), live_runner=InProcessRunner())


def test_a_trace_whose_times_cannot_be_scaled_for_a_seed_or_load_is_rejected_before_any_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "burst.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 3}}\n'
    stamps = [*range(0, 100_000, 1000), *[100_000] * 60, *range(101_000, 111_000, 1000)]
    path.write_text("".join(map(line.format, stamps)))
    config = ExperimentConfig(source=Source.file(path), window_s=20.0, warmup_s=5.0)
    runner = InProcessRunner()
    with pytest.raises(InvalidWorkload, match="52 requests of the trace arrive at once"):
        compare(make_plan("fcfs", config=config), runner)
    assert {type(task) for task in runner.computed} == {CapacityExperiment}
    compare(make_plan("fcfs", config=config, seeds=(0,)), runner)
    compare(make_plan("fcfs", config=config, loads=(2.0,)), runner)
    poisson = replace(config, arrivals="poisson")
    compare(make_plan("fcfs", config=poisson), runner)


def test_progress_reports_each_result_and_ends_with_no_weight_left() -> None:
    reports: list[Progress] = []
    plan = make_plan()
    compare(plan, InProcessRunner(), on_progress=reports.append)
    assert [each.num_done for each in reports if each.latest is not None] == list(
        range(1, plan.num_tasks + 1)
    )
    assert list(dict.fromkeys(each.part for each in reports)) == ["capacity", "runs"]
    for part in ("capacity", "runs"):
        left = [each.left_weight for each in reports if each.part == part]
        assert left == sorted(left, reverse=True)
        assert left[-1] == pytest.approx(0.0, abs=1e-6)


def test_a_live_plan_measures_its_runs_and_simulates_capacity_and_bounds() -> None:
    simulated, live = InProcessRunner(), InProcessRunner()
    plan = make_plan("fcfs", live=LiveSettings(slots=32, step_tokens=512))
    comparison = compare(plan, simulated, live_runner=live)
    assert {type(task) for task in live.computed} == {MachineTask, LiveExperiment}
    assert {type(task) for task in simulated.computed} == {CapacityExperiment, BoundExperiment}
    config = comparison.plan.config
    assert (config.slots, config.step_tokens) == (32, 512)
    assert config.scaling is not None
    assert comparison.goodputs("fcfs", 2.0)[0].tokens == 800.0


def test_a_live_plan_scales_programs_to_the_engine_but_not_its_window() -> None:
    runner = InProcessRunner()
    live = LiveSettings(slots=256, length_scale=0.5)
    comparison = compare(make_plan("fcfs", live=live), runner, live_runner=InProcessRunner())
    original, scaled = (
        each.generate_load(rate_per_s=4.0, seed=0) for each in (CODER, comparison.plan.config)
    )
    assert scaled.window_s == pytest.approx(original.window_s)
    counts = [
        sum(5 <= each.arrival_s < 25 for each in load.programs) for load in (original, scaled)
    ]
    assert counts[1] == pytest.approx(counts[0], rel=0.5)
    assert scaled.programs[0].prompt_tokens == pytest.approx(
        original.programs[0].prompt_tokens / 2, abs=1
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": ()},
        {"policies": (PolicySpec("fcfs"), PolicySpec("fcfs"))},
        {"policies": (PolicySpec("calm", {"pace": 1}), PolicySpec("calm", {"pace": 1.0}))},
        {"loads": ()},
        {"loads": (0.0,)},
        {"loads": (1.0, 1.0)},
        {"loads": (float("nan"),)},
        {"loads": (1e6,)},
        {"seeds": ()},
        {"seeds": (3, 3)},
        {"seeds": (-1,)},
        {"seeds": tuple(range(1001))},
    ],
)
def test_an_invalid_plan_raises_a_named_error(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidWorkload):
        make_plan(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"window_s": 0.0},
        {"window_s": 1e9},
        {"window_s": float("nan")},
        {"warmup_s": -1.0},
        {"slo_scale": 0.0},
        {"predictions": "perfect"},
        {"predictions": "oracle", "length_bias": 2.0},
        {"predictions": "none", "future_bias": 2.0},
        {"length_bias": 0.0},
        {"future_bias": 0.0},
        {"unsteadiness": -0.1},
        {"unsteadiness": 5.0},
        {"unsteadiness": float("nan")},
        {"slots": 0},
        {"slots": 4096},
    ],
)
def test_an_invalid_config_raises_a_named_error(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidWorkload):
        ExperimentConfig(source=CODER.source, **changes)  # type: ignore[arg-type]


def test_the_label_of_a_policy_is_its_command_line_form() -> None:
    assert label_of(PolicySpec("edf")) == "edf"
    assert label_of(PolicySpec("calm_published", {"batch": 96, "cutoff": 0.5})) == (
        "calm_published:batch=96,cutoff=0.5"
    )


def test_policies_that_differ_only_in_the_order_of_parameters_are_the_same() -> None:
    first, second = (
        PolicySpec("calm_published", dict(params))
        for params in ((("batch", 96), ("cutoff", 0.5)), (("cutoff", 0.5), ("batch", 96)))
    )
    assert label_of(first) == label_of(second)
    with pytest.raises(InvalidWorkload, match="each only once"):
        make_plan(policies=(first, second))


def test_the_fake_results_have_the_real_form() -> None:
    """Otherwise these tests would prove nothing."""
    from serving.sim.metrics.outcome import Outcome

    experiment = Experiment(
        config=CODER, policy=PolicySpec("fcfs"), load=1.0, rate_per_s=2.0, seed=0
    )
    document = fake_result(experiment)
    assert Outcome.from_document(document).to_document() | {"trace_repeats": 0} == document
