"""What scheduling by promises costs in throughput at saturation, and in scheduling time.

    python -m benchmarks.throughput [--policy calm] [--loads 2] [--seeds 3] [--window-s 600]
        [--jobs 2] [--json]

In virtual time, with the production scheduler and the mixed workload: tokens computed a second,
promised in time or not. With promises as they are, within the window: a machine is full only after
a minute or so of twice its load, and with a short warm-up all policies compute the same. With
promises a hundred times looser, and without any tag, from the first arrival until the last program
has ended: all do the same work. All must be at least 0.98 of those of fcfs. Milliseconds of
scheduling a step are real: of one run each, alone in one process, computed anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from benchmarks.comparing import (
    BASELINE,
    FLOOR,
    OURS,
    Session,
    exit_code,
    loads,
    options,
    policies,
    ratio,
    session,
    setting_of,
    shown,
    verdict,
)
from benchmarks.unpressed import Unpressed, mean
from serving.sim.compare.compare import Comparison, Plan, label_of
from serving.sim.compare.experiments import Experiment
from serving.sim.compare.runner import Runner

AS_THEY_ARE, LOOSE, NONE = "as they are", "100x looser", "none"


class Row(NamedTuple):
    """One policy at one load, averaged over the seeds.

    Attributes:
        promises: how tight they are.
        throughput_tokens_s: simulated: prompt and output tokens.
        to_fcfs: the ratio; None where fcfs computed nothing.
        is_ok: whether it is no less than FLOOR; None for fcfs itself.
    """

    load: float
    promises: str
    policy: str
    throughput_tokens_s: float
    to_fcfs: float | None
    is_ok: bool | None


class Scheduling(NamedTuple):
    """Real milliseconds that scheduling a step takes, averaged over a run."""

    load: float
    policy: str
    schedule_ms_per_step: float


def rows_of(load: float, promises: str, throughputs: Mapping[str, float]) -> Iterator[Row]:
    """Every policy's throughput beside that of fcfs."""
    first = throughputs[BASELINE]
    for policy, found in throughputs.items():
        is_ok = None if policy == BASELINE else found >= FLOOR * first
        yield Row(load, promises, policy, found, ratio(found, first), is_ok)


def measured(found: Comparison, running: Session) -> Iterator[Row]:
    """All three sorts of promises at every load; `found` has them as they are."""
    plan = found.plan
    for load in plan.loads:
        yield from rows_of(load, AS_THEY_ARE, _throughputs(found, load))
        for promises in (LOOSE, NONE):
            rate_per_s = load * found.capacity_programs_s
            yield from rows_of(load, promises, _unpressed(plan, running, rate_per_s, promises))


def _throughputs(found: Comparison, load: float) -> dict[str, float]:
    return {
        label: fmean(each.report["throughput_tokens_s"] for each in found.of(label, load))
        for label in map(label_of, found.plan.policies)
    }


def _unpressed(plan: Plan, running: Session, rate_per_s: float, promises: str) -> dict[str, float]:
    seeds = range(plan.num_seeds)
    tasks = [
        Unpressed(
            setting=plan.setting,
            policy=policy,
            rate_per_s=rate_per_s,
            seed=seed,
            is_tagged=promises == LOOSE,
        )
        for policy in plan.policies
        for seed in seeds
    ]
    results = iter(running.run(f"promises {promises}", tasks))
    return {
        label_of(policy): mean([next(results) for _ in seeds], "throughput_tokens_s")
        for policy in plan.policies
    }


def scheduling(plan: Plan, capacity_programs_s: float) -> list[Scheduling]:
    """One run of each policy at each load, one after the other, in one process of their own."""
    cases = [
        Experiment(
            setting=plan.setting,
            policy=policy,
            load=load,
            rate_per_s=load * capacity_programs_s,
            seed=0,
        )
        for load in plan.loads
        for policy in plan.policies
    ]
    with Runner(jobs=1, cache=None) as alone:
        ran = Session(alone).run("milliseconds, alone", cases)
    return [
        Scheduling(case.load, label_of(case.policy), each["report"]["schedule_ms_per_step"])
        for case, each in zip(cases, ran, strict=True)
    ]


def table(rows: Sequence[Row], costs: Sequence[Scheduling]) -> str:
    """For people."""
    width = max(16, *(len(row.policy) for row in rows))
    lines = [
        "simulated throughput: all prompt and output tokens a second; x: to fcfs",
        f"{'load':>5}  {'promises':13}{'policy':{width}}{'tokens/s':>12} {'x':>6}",
    ]
    for row in rows:
        told = f"{row.load:5g}  {row.promises:13}{row.policy:{width}}"
        cells = f"{row.throughput_tokens_s:12,.0f} {shown(row.to_fcfs):>6}  {verdict(row.is_ok)}"
        lines.append((told + cells).rstrip())
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
        setting=setting_of(arguments),
        policies=policies(arguments.policy or [OURS]),
        loads=loads(arguments),
        num_seeds=arguments.seeds,
        with_bound=False,
    )
    with session(arguments.jobs) as running:
        found = running.compared(AS_THEY_ARE, plan)
        rows = list(measured(found, running))
    costs = scheduling(plan, found.capacity_programs_s)
    if arguments.json:
        document = {
            "simulated": True,
            "window_s": arguments.window_s,
            "seeds": arguments.seeds,
            "rows": [row._asdict() for row in rows],
            "scheduling": [cost._asdict() for cost in costs],
        }
        print(json.dumps(document))
    else:
        print(table(rows, costs))


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    parser = options(__doc__ or "", loads="2.0")
    parser.add_argument("--policy", action="append", help="beside fcfs; repeatable; default: calm")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
