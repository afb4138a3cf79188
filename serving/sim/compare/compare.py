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
from serving.sim.compare.runner import Runner
from serving.sim.compare.seeds import check_seeds
from serving.sim.compare.task_progress import Progress, TrackedTasks
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
    tracked = TrackedTasks(on_progress, num_tasks=plan.num_tasks)
    if plan.live is not None:
        assert live_runner is not None, "a live plan needs a live runner"
        if live_runner.code != runner.code:
            raise CodeChanged(runner.code, live_runner.code)
        [document] = tracked.run("machine", live_runner, [MachineTask(plan.live)])
        plan = replace(plan, config=_on_machine(plan.config, machine_of(document), plan.live))
    config = plan.config
    capacity = capacity_of(tracked.run("capacity", runner, measurements_of(config)))
    points = points_of(plan, capacity)
    if plan.live is None:
        results = tracked.run("runs", runner, points.tasks)
    else:
        assert live_runner is not None, "a live plan needs a live runner"
        results = tracked.run("bounds", runner, list(points.bounds.values()))
        runner.close()
        live = [LiveExperiment(each) for each in points.experiments.values()]
        results += tracked.run("runs", live_runner, live)
    return comparison_of(plan, capacity, points, results, code=runner.code)


class Points(NamedTuple):
    """The experiments of a plan at a known capacity."""

    experiments: Mapping[Run, Experiment]
    bounds: Mapping[tuple[float, int], BoundExperiment]

    @property
    def tasks(self) -> list[Task]:
        """The bounds, then the runs."""
        return [*self.bounds.values(), *self.experiments.values()]


def comparison_of(
    plan: Plan, capacity: float, points: Points, results: Sequence[Mapping[str, Any]], *, code: str
) -> Comparison:
    """The comparison with these results.

    Args:
        capacity: programs per second.
        results: of all `points.tasks`, in their order.
        code: version of the code that computed them.
    """
    num_bounds = len(points.bounds)
    bounds, runs = results[:num_bounds], results[num_bounds:]
    return Comparison(
        plan,
        capacity,
        {
            run: Outcome.from_document(each)
            for run, each in zip(points.experiments, runs, strict=True)
        },
        {key: Goodputs(*bound_of(each)) for key, each in zip(points.bounds, bounds, strict=True)},
        max(each["trace_repeats"] for each in runs),
        code,
    )


def points_of(plan: Plan, capacity: float) -> Points:
    """The experiments of a plan at a capacity in programs per second; raises like `compare`."""
    config = plan.config
    config.check(rate_per_s=min(plan.loads) * capacity, seeds=plan.seeds)
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
    return Points(experiments, bounds)


def _on_machine(config: ExperimentConfig, machine: Machine, live: LiveSettings) -> ExperimentConfig:
    """The same workload scaled to another machine, so that it is as hard as on its own machine."""
    return replace(
        config,
        machine=machine,
        slots=live.slots,
        step_tokens=live.step_tokens,
        scaling=Scaling(live, scale_of(machine, live)),
    )
