"""The cost of SLO-aware scheduling: throughput at saturation, and scheduling time.

    python -m benchmarks.throughput [--policy calm] [--loads 2] [--seeds 3] [--window-s 600]
        [--jobs 2] [--json]

In virtual time, with the production scheduler and the mixed workload: tokens computed per second,
in time or not. With the SLOs as they are, within the window: a machine is full only after about a
minute of twice its load, and with a short warm-up all policies compute the same. With SLOs a
hundred times looser, and without any tag, from the first arrival until the last program has ended:
all policies do the same work. Throughput must be at least 0.98 of that of fcfs. The milliseconds of
scheduling per step are real: of one uncached run each, in a process without parallel runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from benchmarks.command import exit_code, print_result
from benchmarks.comparing import (
    BASELINE,
    FLOOR,
    OURS,
    Session,
    config_of,
    document,
    format_ratio,
    loads,
    options,
    policies,
    ratio,
    seeds,
    session,
    verdict,
)
from benchmarks.loose_slos import LooseExperiment, mean
from serving.sim.compare.compare import Comparison, Plan, label_of
from serving.sim.compare.experiments import Experiment
from serving.sim.compare.runner import Runner

AS_THEY_ARE, LOOSE, NONE = "as they are", "100x looser", "none"


class Row(NamedTuple):
    """One policy at one load, averaged over the seeds.

    Attributes:
        promises: which SLOs the programs have.
        throughput_tokens_s: simulated: prompt and output tokens per second.
        to_fcfs: ratio to fcfs; None if fcfs computed nothing.
        is_ok: whether the ratio is at least FLOOR; None for fcfs itself.
    """

    load: float
    promises: str
    policy: str
    throughput_tokens_s: float
    to_fcfs: float | None
    is_ok: bool | None


class Scheduling(NamedTuple):
    """Mean real milliseconds to schedule a step of a run."""

    load: float
    policy: str
    schedule_ms_per_step: float


def rows_of(load: float, promises: str, throughputs: Mapping[str, float]) -> Iterator[Row]:
    """Every policy's throughput, and its ratio to that of fcfs."""
    baseline = throughputs[BASELINE]
    for policy, value in throughputs.items():
        is_ok = None if policy == BASELINE else value >= FLOOR * baseline
        yield Row(load, promises, policy, value, ratio(value, baseline), is_ok)


def all_rows(comparison: Comparison, running: Session) -> Iterator[Row]:
    """The rows of all three kinds of SLOs at every load.

    Args:
        comparison: with the SLOs as they are.
    """
    plan = comparison.plan
    for load in plan.loads:
        yield from rows_of(load, AS_THEY_ARE, _throughputs(comparison, load))
        for promises in (LOOSE, NONE):
            rate_per_s = load * comparison.capacity_programs_s
            throughputs = _loose_throughputs(plan, running, rate_per_s, promises)
            yield from rows_of(load, promises, throughputs)


def _throughputs(comparison: Comparison, load: float) -> dict[str, float]:
    return {
        label: fmean(each.report["throughput_tokens_s"] for each in comparison.of(label, load))
        for label in map(label_of, comparison.plan.policies)
    }


def _loose_throughputs(
    plan: Plan, running: Session, rate_per_s: float, promises: str
) -> dict[str, float]:
    tasks = [
        LooseExperiment(
            config=plan.config,
            policy=policy,
            rate_per_s=rate_per_s,
            seed=seed,
            is_tagged=promises == LOOSE,
        )
        for policy in plan.policies
        for seed in plan.seeds
    ]
    results = iter(running.run(f"SLOs {promises}", tasks))
    return {
        label_of(policy): mean([next(results) for _ in plan.seeds], "throughput_tokens_s")
        for policy in plan.policies
    }


def scheduling(plan: Plan, capacity_programs_s: float) -> list[Scheduling]:
    """Run each policy at each load, one after another in one process without the cache."""
    experiments = [
        Experiment(
            config=plan.config,
            policy=policy,
            load=load,
            rate_per_s=load * capacity_programs_s,
            seed=0,
        )
        for load in plan.loads
        for policy in plan.policies
    ]
    with Runner(jobs=1, cache=None) as runner:
        documents = Session(runner).run("milliseconds, alone", experiments)
    return [
        Scheduling(
            experiment.load,
            label_of(experiment.policy),
            document["report"]["schedule_ms_per_step"],
        )
        for experiment, document in zip(experiments, documents, strict=True)
    ]


def table(rows: Sequence[Row], costs: Sequence[Scheduling]) -> str:
    """The throughputs and the scheduling times as text tables."""
    width = max(16, *(len(row.policy) for row in rows))
    lines = [
        "simulated throughput: all prompt and output tokens a second; x: to fcfs",
        f"{'load':>5}  {'promises':13}{'policy':{width}}{'tokens/s':>12} {'x':>6}",
    ]
    for row in rows:
        head = f"{row.load:5g}  {row.promises:13}{row.policy:{width}}"
        cells = f"{row.throughput_tokens_s:12,.0f} {format_ratio(row.to_fcfs):>6}"
        lines.append(f"{head}{cells}  {verdict(row.is_ok)}".rstrip())
    lines += [
        "real milliseconds of scheduling in a step of a simulated run, promises as they are",
        f"{'load':>5}  {'policy':{width}}{'ms':>8}",
    ]
    lines += [
        f"{cost.load:5g}  {cost.policy:{width}}{cost.schedule_ms_per_step:8.2f}" for cost in costs
    ]
    return "\n".join(lines)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    plan = Plan(
        config=config_of(arguments),
        policies=policies(arguments.policy or [OURS]),
        loads=loads(arguments),
        seeds=seeds(arguments),
        with_bound=False,
    )
    with session(arguments.jobs) as running:
        comparison = running.compare(AS_THEY_ARE, plan)
        rows = list(all_rows(comparison, running))
    costs = scheduling(plan, comparison.capacity_programs_s)
    result = document(
        arguments,
        rows=[row._asdict() for row in rows],
        scheduling=[cost._asdict() for cost in costs],
    )
    print_result(result, table(rows, costs), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="2.0")
    parser.add_argument("--policy", action="append", help="next to fcfs; repeatable; default: calm")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
