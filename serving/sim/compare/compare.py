"""Policies x loads x seeds -> one comparison: same programs, same predictions, same machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import CAPACITY_SEEDS, CapacityExperiment, capacity_of
from serving.sim.compare.experiment_config import ExperimentConfig, Scaling
from serving.sim.compare.experiments import BoundExperiment, Experiment, Task, bound_of
from serving.sim.compare.live_experiments import LiveExperiment, MachineTask, machine_of
from serving.sim.compare.runner import Done, Runner
from serving.sim.drive.live_scale import LiveSettings, scale_of
from serving.sim.metrics.outcome import Outcome
from serving.step_cost import Machine
from serving.workload_errors import CodeChanged, InvalidWorkload

MOST_LOAD = 100.0
MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compare.

    Attributes:
        loads: multiples of the workload's capacity, ascending.
        num_seeds: seeds 0, 1, ... of arrivals, lengths and prediction errors.
        live: None: simulated. Else measured on the real engine, whose simulated counterpart then
            takes the place of the setting's machine: for the capacity and the bound.
    Raises:
        InvalidWorkload: nothing to compare, a thing twice, or a number out of range.
    """

    setting: ExperimentConfig
    policies: tuple[PolicySpec, ...]
    loads: tuple[float, ...]
    num_seeds: int
    with_bound: bool = True
    live: LiveSettings | None = None

    def __post_init__(self) -> None:
        twice = any(one == other for one, other in combinations(self.policies, 2))
        if not self.policies or twice:
            told = "name each policy once, and at least one"
            raise InvalidWorkload("policies", tuple(map(label_of, self.policies)), told)
        for load in self.loads:
            if not (math.isfinite(load) and 0 < load <= MOST_LOAD):
                raise InvalidWorkload("load", load, f"must be above 0 and at most {MOST_LOAD:g}")
        if not self.loads or len(set(self.loads)) < len(self.loads):
            raise InvalidWorkload("loads", self.loads, "name each load once, and at least one")
        if not 1 <= self.num_seeds <= MOST_SEEDS:
            told = f"must lie within 1 and {MOST_SEEDS}"
            raise InvalidWorkload("seeds", self.num_seeds, told)

    @property
    def num_tasks(self) -> int:
        """Results that it takes, capacity included."""
        runs = len(self.loads) * self.num_seeds
        measured = len(CAPACITY_SEEDS) + (self.live is not None)
        return measured + runs * (len(self.policies) + self.with_bound)


class Run(NamedTuple):
    """Which run an outcome is of: the policy by its label."""

    policy: str
    load: float
    seed: int


class Goodputs(NamedTuple):
    """Per second of the window."""

    tokens: float
    requests: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a plan.

    Attributes:
        capacity_programs_s: load 1.0, in programs a second.
        outcomes: in the order of policies, loads, seeds.
        bounds: by load and seed; empty where none were asked for.
        trace_repeats: how often a trace had to be begun anew in one run, at most.
        code: version of the code that computed all of it.
    """

    plan: Plan
    capacity_programs_s: float
    outcomes: Mapping[Run, Outcome]
    bounds: Mapping[tuple[float, int], Goodputs]
    trace_repeats: int
    code: str

    @property
    def bound_name(self) -> str:
        """What the bounds are: of measured runs an estimate, since the bounded machine is a fit."""
        return "upper bound" if self.plan.live is None else "simulated bound"

    def of(self, policy: str, load: float) -> list[Outcome]:
        """A policy's outcomes at a load, one a seed."""
        return [self.outcomes[Run(policy, load, seed)] for seed in range(self.plan.num_seeds)]

    def goodputs(self, policy: str, load: float) -> list[Goodputs]:
        """The same, as far as they are goodputs."""
        found = self.of(policy, load)
        return [Goodputs(each.token_goodput, each.request_goodput) for each in found]

    def bounds_at(self, load: float) -> list[Goodputs]:
        """The upper bound at a load, one a seed; empty where none were asked for."""
        seeds = range(self.plan.num_seeds) if self.bounds else ()
        return [self.bounds[load, seed] for seed in seeds]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison is.

    Attributes:
        part: "machine" where the real engine is measured, then "capacity", then "bounds" and
            "runs".
        num_done, num_tasks: of all parts.
        latest: what was done last; None before the part's first.
        done_weight: of the part's tasks that were computed, in the unit of Task.weight; those
            kept from before do not count.
        left_weight: of the part's other tasks, as yet.
    """

    part: str
    num_done: int
    num_tasks: int
    latest: Done | None
    done_weight: float
    left_weight: float


def label_of(policy: PolicySpec) -> str:
    """A policy as it is written: `name`, or `name:key=value,key=value`, keys in their order."""
    if not policy.params:
        return policy.name
    return f"{policy.name}:" + ",".join(
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

    Simulated, the same plan gives the same comparison, but for schedule_ms_per_step: real
    milliseconds, as they were when the result was computed.

    Args:
        runner: of all that is simulated.
        live_runner: of what is measured, where the plan is to be measured: one job, no cache. It
            is used before and after `runner`, never at the same time.
        on_progress: told before each part, and each time that a task is done.
    Raises:
        WorkerDied: a process ended by itself.
        CodeChanged: a process runs other code than the comparison began with.
        InvalidWorkload, TraceMissing, BadTrace: the setting does not give programs.
    """
    plan.setting.generated_load(rate_per_s=1.0, seed=0)  # what gives no programs is told at once
    watched = _Watched(plan.num_tasks, on_progress)
    if plan.live is not None:
        assert live_runner is not None, "somebody has to measure"
        if live_runner.code != runner.code:
            raise CodeChanged(runner.code, live_runner.code)
        [found] = watched.run("machine", live_runner, [MachineTask(plan.live)])
        plan = replace(plan, setting=_on_machine(plan.setting, machine_of(found), plan.live))
    setting = plan.setting
    measured = [CapacityExperiment(setting=setting, seed=seed) for seed in CAPACITY_SEEDS]
    capacity = capacity_of(watched.run("capacity", runner, measured))
    setting.check(rate_per_s=min(plan.loads) * capacity, num_seeds=plan.num_seeds)
    cases, bounds = _cases(plan, capacity)
    if plan.live is None:
        results = watched.run("runs", runner, [*bounds.values(), *cases.values()])
        bounded, ran = results[: len(bounds)], results[len(bounds) :]
    else:
        assert live_runner is not None, "somebody has to measure"
        bounded = watched.run("bounds", runner, list(bounds.values()))
        runner.close()
        ran = watched.run("runs", live_runner, [LiveExperiment(each) for each in cases.values()])
    return Comparison(
        plan,
        capacity,
        {run: Outcome.from_document(each) for run, each in zip(cases, ran, strict=True)},
        {at: Goodputs(*bound_of(each)) for at, each in zip(bounds, bounded, strict=True)},
        max(each["trace_repeats"] for each in ran),
        runner.code,
    )


def _cases(
    plan: Plan, capacity: float
) -> tuple[dict[Run, Experiment], dict[tuple[float, int], BoundExperiment]]:
    setting = plan.setting
    rates = {load: load * capacity for load in plan.loads}
    seeds = range(plan.num_seeds)
    cases = {
        Run(label_of(policy), load, seed): Experiment(
            setting=setting, policy=policy, load=load, rate_per_s=rates[load], seed=seed
        )
        for policy in plan.policies
        for load in plan.loads
        for seed in seeds
    }
    bounds = {
        (load, seed): BoundExperiment(setting=setting, load=load, rate_per_s=rates[load], seed=seed)
        for load in plan.loads
        for seed in seeds
        if plan.with_bound
    }
    return cases, bounds


def _on_machine(
    setting: ExperimentConfig, machine: Machine, live: LiveSettings
) -> ExperimentConfig:
    """The same workload on another machine, as hard for it as for its own."""
    return replace(
        setting,
        machine=machine,
        slots=live.slots,
        step_tokens=live.step_tokens,
        scaling=Scaling(live, scale_of(machine, live)),
    )


class _Watched:
    """Runs tasks, and tells how far it is."""

    def __init__(self, num_tasks: int, on_progress: Callable[[Progress], None]) -> None:
        self._num_tasks = num_tasks
        self._on_progress = on_progress
        self._num_done = 0

    def run(self, part: str, runner: Runner, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The results of all tasks, in their order."""
        done_weight, left_weight = 0.0, sum(task.weight for task in tasks)
        results: list[dict[str, Any]] = [{} for _ in tasks]

        def tell(latest: Done | None) -> None:
            told = Progress(part, self._num_done, self._num_tasks, latest, done_weight, left_weight)
            self._on_progress(told)

        tell(None)
        for done in runner.run(tasks):
            results[done.place] = done.result
            self._num_done += 1
            left_weight -= done.task.weight
            done_weight += 0.0 if done.was_kept else done.task.weight
            tell(done)
        return results
