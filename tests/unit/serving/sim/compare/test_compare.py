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
from serving.sim.compare.compare import Goodputs, Progress, Run, compare, label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import BoundExperiment, Experiment
from serving.sim.compare.live_experiments import LiveExperiment, MachineTask
from serving.sim.compare.result_cache import ResultCache, code_version
from serving.sim.compare.runner import key_of
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.workloads.load_generator import Source
from serving.workload_errors import CodeChanged, InvalidWorkload
from tests.unit.serving.sim.bench_examples import (
    CAPACITY,
    CODER,
    HereRunner,
    a_comparison,
    a_plan,
    made_up,
)

GOODPUTS = ("token_goodput", "request_goodput")


def test_every_policy_load_and_seed_is_run_once_in_a_stated_order() -> None:
    runner = HereRunner()
    found = compare(a_plan("fcfs", "edf"), runner)
    wanted = [
        Run(policy, load, seed)
        for policy in ("fcfs", "edf")
        for load in (0.7, 2.0)
        for seed in (0, 1)
    ]
    assert list(found.outcomes) == wanted
    assert list(found.bounds) == [(load, seed) for load in (0.7, 2.0) for seed in (0, 1)]
    assert sum(isinstance(task, Experiment) for task in runner.computed) == len(wanted)
    assert found.goodputs("edf", 2.0) == [Goodputs(600.0, 6.0), Goodputs(601.0, 6.01)]
    assert found.bounds_at(2.0) == [Goodputs(10_000.0, 100.0)] * 2


def test_loads_are_multiples_of_the_capacity_averaged_over_its_seeds() -> None:
    runner = HereRunner()
    assert compare(a_plan(), runner).capacity_programs_s == pytest.approx(CAPACITY)
    cases = [task for task in runner.computed if isinstance(task, Experiment | BoundExperiment)]
    assert {(task.load, round(task.rate_per_s, 9)) for task in cases} == {
        (0.7, round(0.7 * CAPACITY, 9)),
        (2.0, 2.0 * CAPACITY),
    }
    assert {task.seed for task in runner.computed if isinstance(task, CapacityExperiment)} == set(
        CAPACITY_SEEDS
    )


def test_without_a_bound_none_is_computed() -> None:
    found = a_comparison(with_bound=False)
    assert found.bounds == {}
    assert found.bounds_at(0.7) == []


def test_what_was_kept_is_not_computed_again_and_gives_the_same(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, "v1")
    first, second = HereRunner(cache=cache), HereRunner(cache=cache)
    one, two = compare(a_plan("fcfs"), first), compare(a_plan("fcfs"), second)
    assert first.computed
    assert second.computed == []
    assert one.outcomes == two.outcomes
    third = HereRunner(cache=cache)
    compare(a_plan("fcfs", "edf"), third)
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
def test_every_setting_is_part_of_what_a_result_is_kept_under(changes: dict[str, object]) -> None:
    case = Experiment(setting=CODER, policy=PolicySpec("fcfs"), load=1.0, rate_per_s=2.0, seed=0)
    other = replace(case, setting=replace(CODER, **changes))  # type: ignore[arg-type]
    assert key_of(case) != key_of(other)
    for one in (
        replace(case, policy=PolicySpec("edf")),
        replace(case, seed=1),
        replace(case, rate_per_s=2.1),
        BoundExperiment(setting=CODER, load=1.0, rate_per_s=2.0, seed=0),
        CapacityExperiment(setting=CODER, seed=0),
    ):
        assert key_of(one) != key_of(case)
        json.dumps(key_of(one), allow_nan=False)


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "an infinite count": lambda result: result | {"trace_repeats": math.inf},
    "a report of two fields": lambda result: (
        result | {"report": {name: result["report"][name] for name in GOODPUTS}}
    ),
    "a capacity that is no number": lambda result: dict.fromkeys(result, math.nan),
    "nothing": lambda _: {},
}
"""What may become of a kept result, and still be JSON under the right key."""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_kept_results_that_were_changed_are_computed_again(
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = ResultCache(tmp_path, "v1")
    before = compare(a_plan("fcfs"), HereRunner(cache=cache))
    num_changed = 0
    for path in tmp_path.iterdir():
        document = json.loads(path.read_bytes())
        with suppress(KeyError):
            document["result"] = damage(document["result"])
            path.write_text(json.dumps(document))
            num_changed += 1
    runner = HereRunner(cache=cache)
    after = compare(a_plan("fcfs"), runner)
    assert (after.outcomes, after.bounds) == (before.outcomes, before.bounds)
    assert after.capacity_programs_s == before.capacity_programs_s
    assert len(runner.computed) == num_changed > 0
    assert caplog.text.count("computed again") == num_changed
    again = HereRunner(cache=cache)
    compare(a_plan("fcfs"), again)
    assert again.computed == []


def test_a_comparison_names_the_code_that_it_began_with(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, "v1")
    assert compare(a_plan("fcfs"), HereRunner(cache=cache)).code == "v1"
    assert a_comparison("fcfs").code == code_version()
    live = a_plan("fcfs", live=LiveSettings())
    with pytest.raises(CodeChanged, match="begun with version v1, and a process runs"):
        compare(live, HereRunner(cache=cache), live_runner=HereRunner())


def test_a_trace_without_a_rhythm_for_a_later_seed_or_load_is_refused_before_any_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flood.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 3}}\n'
    stamps = [*range(0, 100_000, 1000), *[100_000] * 60, *range(101_000, 111_000, 1000)]
    path.write_text("".join(map(line.format, stamps)))
    setting = ExperimentConfig(source=Source.file(path), window_s=20.0, warmup_s=5.0)
    runner = HereRunner()
    with pytest.raises(InvalidWorkload, match="52 requests of the trace come at once"):
        compare(a_plan("fcfs", setting=setting), runner)
    assert {type(task) for task in runner.computed} == {CapacityExperiment}
    compare(a_plan("fcfs", setting=setting, num_seeds=1), runner)
    compare(a_plan("fcfs", setting=setting, loads=(2.0,)), runner)
    poisson = replace(setting, arrivals="poisson")
    compare(a_plan("fcfs", setting=poisson), runner)


def test_progress_tells_each_result_and_ends_with_nothing_left() -> None:
    told: list[Progress] = []
    plan = a_plan()
    compare(plan, HereRunner(), on_progress=told.append)
    assert [each.num_done for each in told if each.latest is not None] == list(
        range(1, plan.num_tasks + 1)
    )
    assert list(dict.fromkeys(each.part for each in told)) == ["capacity", "runs"]
    for part in ("capacity", "runs"):
        left = [each.left_weight for each in told if each.part == part]
        assert left == sorted(left, reverse=True)
        assert left[-1] == pytest.approx(0.0, abs=1e-6)


def test_measured_runs_take_the_place_of_simulated_ones_on_a_machine_like_the_engine() -> None:
    simulated, live = HereRunner(), HereRunner()
    plan = a_plan("fcfs", live=LiveSettings(slots=32, step_tokens=512))
    found = compare(plan, simulated, live_runner=live)
    assert {type(task) for task in live.computed} == {MachineTask, LiveExperiment}
    assert {type(task) for task in simulated.computed} == {CapacityExperiment, BoundExperiment}
    setting = found.plan.setting
    assert (setting.slots, setting.step_tokens) == (32, 512)
    assert setting.scaling is not None
    assert found.goodputs("fcfs", 2.0)[0].tokens == 800.0


def test_programs_are_scaled_with_the_machine_and_counted_in_its_own_time() -> None:
    runner = HereRunner()
    live = LiveSettings(slots=256, length_scale=0.5)
    found = compare(a_plan("fcfs", live=live), runner, live_runner=HereRunner())
    own, scaled = (
        each.generated_load(rate_per_s=4.0, seed=0) for each in (CODER, found.plan.setting)
    )
    assert scaled.window_s == pytest.approx(own.window_s)
    counts = [sum(5 <= each.arrival_s < 25 for each in one.programs) for one in (own, scaled)]
    assert counts[1] == pytest.approx(counts[0], rel=0.5)
    assert scaled.programs[0].prompt_tokens == pytest.approx(
        own.programs[0].prompt_tokens / 2, abs=1
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": ()},
        {"policies": (PolicySpec("fcfs"), PolicySpec("fcfs"))},
        {"policies": (PolicySpec("calm", {"margin": 1}), PolicySpec("calm", {"margin": 1.0}))},
        {"loads": ()},
        {"loads": (0.0,)},
        {"loads": (1.0, 1.0)},
        {"loads": (float("nan"),)},
        {"loads": (1e6,)},
        {"num_seeds": 0},
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidWorkload):
        a_plan(**changes)


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
def test_a_setting_out_of_range_is_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidWorkload):
        ExperimentConfig(source=CODER.source, **changes)  # type: ignore[arg-type]


def test_a_policy_is_called_as_it_is_written() -> None:
    assert label_of(PolicySpec("edf")) == "edf"
    assert label_of(PolicySpec("calm_published", {"batch": 96, "cutoff": 0.5})) == (
        "calm_published:batch=96,cutoff=0.5"
    )


def test_the_order_of_its_parameters_makes_no_other_policy() -> None:
    one, other = (
        PolicySpec("calm_published", dict(params))
        for params in ((("batch", 96), ("cutoff", 0.5)), (("cutoff", 0.5), ("batch", 96)))
    )
    assert label_of(one) == label_of(other)
    with pytest.raises(InvalidWorkload, match="each policy once"):
        a_plan(policies=(one, other))


def test_the_made_up_results_are_of_the_real_form() -> None:
    """Otherwise these tests would tell nothing."""
    from serving.sim.metrics.outcome import Outcome

    case = Experiment(setting=CODER, policy=PolicySpec("fcfs"), load=1.0, rate_per_s=2.0, seed=0)
    document = made_up(case)
    assert Outcome.from_document(document).to_document() | {"trace_repeats": 0} == document
