"""Policies x loads x seeds -> a comparison on the same programs, predictions and machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import CAPACITY_SEEDS, capacity_of, measurements_of
from serving.sim.compare.experiment_config import ExperimentConfig, Scaling
from serving.sim.compare.experiments import BoundExperiment, Experiment, Task, bound_of
from serving.sim.compare.live_experiments import LiveExperiment, MachineTask, machine_of
from serving.sim.compare.runner import CompletedTask, Runner
from serving.sim.compare.seeds import check_seeds
from serving.sim.drive.live_scale import LiveSettings, scale_of
from serving.sim.metrics.outcome import Outcome
from serving.step_cost import Machine
from serving.workload_errors import CodeChanged, InvalidWorkload

MAX_LOAD = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compare.

    Attributes:
        loads: multiples of the workload's capacity, ascending.
        seeds: of arrivals, lengths and prediction errors; each at least 0 and only once.
        live: None: simulate the policies. Otherwise measure them on the real engine; its
            simulated counterpart then replaces the config's machine for capacity and bound.
    Raises:
        InvalidWorkload: no policy or load, a duplicate, or a number out of range.
    """

    config: ExperimentConfig
    policies: tuple[PolicySpec, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    with_bound: bool = True
    live: LiveSettings | None = None

    def __post_init__(self) -> None:
        has_duplicate = any(first == second for first, second in combinations(self.policies, 2))
        if not self.policies or has_duplicate:
            reason = "give at least one policy, and each only once"
            raise InvalidWorkload("policies", tuple(map(label_of, self.policies)), reason)
        labels = tuple(map(label_of, self.policies))
        if len(set(labels)) < len(labels):
            reason = "two of them would be shown under one name: rename a function"
            raise InvalidWorkload("policies", labels, reason)
        for load in self.loads:
            if not (math.isfinite(load) and 0 < load <= MAX_LOAD):
                raise InvalidWorkload("load", load, f"must be above 0 and at most {MAX_LOAD:g}")
        if not self.loads or len(set(self.loads)) < len(self.loads):
            raise InvalidWorkload("loads", self.loads, "give at least one load, and each only once")
        check_seeds(self.seeds)

    @property
    def num_tasks(self) -> int:
        """Tasks of the whole comparison, those that measure the capacity included."""
        points = len(self.loads) * len(self.seeds)
        measurements = len(CAPACITY_SEEDS) + (self.live is not None)
        return measurements + points * (len(self.policies) + self.with_bound)


class Run(NamedTuple):
    """The key of a run's outcome; `policy` is the policy's label."""

    policy: str
    load: float
    seed: int


class Goodputs(NamedTuple):
    """Per second of the window."""

    tokens: float
    requests: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of a plan.

    Attributes:
        capacity_programs_s: load 1.0, in programs per second.
        outcomes: in the order of policies, loads, seeds.
        bounds: (load, seed) -> upper bound; empty if the plan has none.
        trace_repeats: the most times that one run restarted the trace file from its beginning.
        code: version of the code that computed all results.
    """

    plan: Plan
    capacity_programs_s: float
    outcomes: Mapping[Run, Outcome]
    bounds: Mapping[tuple[float, int], Goodputs]
    trace_repeats: int
    code: str

    @property
    def bound_name(self) -> str:
        """How to call the bounds; for measured runs they are an estimate, of a fitted machine."""
        return "upper bound" if self.plan.live is None else "simulated bound"

    def of(self, policy: str, load: float) -> list[Outcome]:
        """A policy's outcomes at a load, one per seed."""
        return [self.outcomes[Run(policy, load, seed)] for seed in self.plan.seeds]

    def goodputs(self, policy: str, load: float) -> list[Goodputs]:
        """A policy's goodputs at a load, one per seed."""
        outcomes = self.of(policy, load)
        return [Goodputs(each.token_goodput, each.request_goodput) for each in outcomes]

    def bounds_at(self, load: float) -> list[Goodputs]:
        """The upper bounds at a load, one per seed; empty if the plan has none."""
        return [self.bounds[load, seed] for seed in self.plan.seeds if self.bounds]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison is.

    Attributes:
        part: "machine" if the real engine is measured, then "capacity", then "bounds" and "runs".
        num_done, num_tasks: of all parts.
        latest: the task that completed last; None before the first one of the part.
        done_weight: sum of Task.weight over the part's tasks that were computed; cached results
            do not count.
        left_weight: sum of Task.weight over the part's tasks that have not completed.
    """

    part: str
    num_done: int
    num_tasks: int
    latest: CompletedTask | None
    done_weight: float
    left_weight: float


def label_of(policy: PolicySpec) -> str:
    """A policy in command-line form: `name`, or `name:key=value,key=value` with sorted keys."""
    if not policy.params:
        return policy.label
    return f"{policy.label}:" + ",".join(
        f"{key}={policy.params[key]}" for key in sorted(policy.params)
    )


def compare(
    plan: Plan,
    runner: Runner,
    *,
    live_runner: Runner | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Comparison:
    """Measure the workload's capacity, then run every policy, load and seed.

    A simulated comparison is reproducible, except schedule_ms_per_step: real milliseconds, measured
    when the result was computed.

    Args:
        runner: runs all simulations.
        live_runner: runs the measurements if `plan.live` is set: one job, no cache. It runs before
            and after `runner`, never at the same time.
        on_progress: called before each part, and after each task.
    Raises:
        WorkerDied: a worker process ended unexpectedly.
        CodeChanged: a process runs other code than the comparison started with.
        InvalidWorkload, TraceMissing, BadTrace: the config yields no programs.
    """
    plan.config.generate_load(rate_per_s=1.0, seed=0)  # fails now if the config has no programs
    tracked = _TrackedTasks(plan.num_tasks, on_progress)
    if plan.live is not None:
        assert live_runner is not None, "a live plan needs a live runner"
        if live_runner.code != runner.code:
            raise CodeChanged(runner.code, live_runner.code)
        [document] = tracked.run("machine", live_runner, [MachineTask(plan.live)])
        plan = replace(plan, config=_on_machine(plan.config, machine_of(document), plan.live))
    config = plan.config
    capacity = capacity_of(tracked.run("capacity", runner, measurements_of(config)))
    config.check(rate_per_s=min(plan.loads) * capacity, seeds=plan.seeds)
    experiments, bounds = _experiments(plan, capacity)
    if plan.live is None:
        results = tracked.run("runs", runner, [*bounds.values(), *experiments.values()])
        bound_results, run_results = results[: len(bounds)], results[len(bounds) :]
    else:
        assert live_runner is not None, "a live plan needs a live runner"
        bound_results = tracked.run("bounds", runner, list(bounds.values()))
        runner.close()
        live = [LiveExperiment(each) for each in experiments.values()]
        run_results = tracked.run("runs", live_runner, live)
    return Comparison(
        plan,
        capacity,
        {
            run: Outcome.from_document(each)
            for run, each in zip(experiments, run_results, strict=True)
        },
        {key: Goodputs(*bound_of(each)) for key, each in zip(bounds, bound_results, strict=True)},
        max(each["trace_repeats"] for each in run_results),
        runner.code,
    )


def _experiments(
    plan: Plan, capacity: float
) -> tuple[dict[Run, Experiment], dict[tuple[float, int], BoundExperiment]]:
    config = plan.config
    rates = {load: load * capacity for load in plan.loads}
    experiments = {
        Run(label_of(policy), load, seed): Experiment(
            config=config, policy=policy, load=load, rate_per_s=rates[load], seed=seed
        )
        for policy in plan.policies
        for load in plan.loads
        for seed in plan.seeds
    }
    bounds = {
        (load, seed): BoundExperiment(config=config, load=load, rate_per_s=rates[load], seed=seed)
        for load in plan.loads
        for seed in plan.seeds
        if plan.with_bound
    }
    return experiments, bounds


def _on_machine(config: ExperimentConfig, machine: Machine, live: LiveSettings) -> ExperimentConfig:
    """The same workload scaled to another machine, so that it is as hard as on its own machine."""
    return replace(
        config,
        machine=machine,
        slots=live.slots,
        step_tokens=live.step_tokens,
        scaling=Scaling(live, scale_of(machine, live)),
    )


class _TrackedTasks:
    """Runs tasks and reports progress."""

    def __init__(self, num_tasks: int, on_progress: Callable[[Progress], None]) -> None:
        self._num_tasks = num_tasks
        self._on_progress = on_progress
        self._num_done = 0

    def run(self, part: str, runner: Runner, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The results of all tasks, in their order."""
        done_weight, left_weight = 0.0, sum(task.weight for task in tasks)
        results: list[dict[str, Any]] = [{} for _ in tasks]

        def report(latest: CompletedTask | None) -> None:
            progress = Progress(
                part, self._num_done, self._num_tasks, latest, done_weight, left_weight
            )
            self._on_progress(progress)

        report(None)
        for done in runner.run(tasks):
            results[done.task_index] = done.result
            self._num_done += 1
            left_weight -= done.task.weight
            done_weight += 0.0 if done.from_cache else done.task.weight
            report(done)
        return results
