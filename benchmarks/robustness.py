"""Conditions in which calm could be worse than fcfs: one-sided workloads, bursts, bad predictions.

    python -m benchmarks.robustness [--policy calm --policy edf] [--condition burst] [--loads 1,2]
        [--seeds 3] [--window-s 600] [--jobs 2] [--json]

Further conditions are an unsteady machine, agent loops with prefix caching, and no SLOs. All in
virtual time, with the production scheduler. Under each condition and load both goodputs must be at
least 0.98 of those of fcfs. Without SLOs all programs must end, throughput must be at least 0.98
and the mean end-to-end latency at most 1.02 of that of fcfs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.command import exit_code, print_result
from benchmarks.comparing import (
    BASELINE,
    FLOOR,
    OURS,
    Session,
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
from benchmarks.loose_slos import LooseExperiment, all_finished, mean
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import Comparison, Plan, label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source

GOODPUTS = ("token_goodput", "request_goodput")
THROUGHPUT, E2EL = "throughput_tokens_s", "mean_e2el_s"
NO_TAGS = "no-tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How a condition differs from the default mixed workload; fields as in ExperimentConfig."""

    workload: str = "mixed"
    arrivals: str | None = None
    slo_scale: float = 1.0
    length_bias: float = 1.0
    future_bias: float = 1.0
    unsteadiness: float = 0.0
    prefix_caching: bool = False

    def config(self, *, window_s: float, warmup_s: float) -> ExperimentConfig:
        """The condition as a config; raises InvalidWorkload if a value is out of range."""
        return ExperimentConfig(
            source=Source.generator(self.workload),
            arrivals=self.arrivals,
            slo_scale=self.slo_scale,
            length_bias=self.length_bias,
            future_bias=self.future_bias,
            unsteadiness=self.unsteadiness,
            prefix_caching=self.prefix_caching,
            window_s=window_s,
            warmup_s=warmup_s,
        )


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "mixed": Condition(),
        "latency": Condition(workload="latency"),
        "deadline": Condition(workload="deadline"),
        "compound": Condition(workload="compound"),
        "burst": Condition(arrivals="burst"),
        "slo-x0.5": Condition(slo_scale=0.5),
        "slo-x2": Condition(slo_scale=2.0),
        "lengths-x2": Condition(length_bias=2.0),
        "lengths-x0.5": Condition(length_bias=0.5),
        "futures-x2": Condition(future_bias=2.0),
        "futures-x0.5": Condition(future_bias=0.5),
        "unsteady": Condition(unsteadiness=1.0),
        "loops": Condition(workload="tools", prefix_caching=True),
        NO_TAGS: Condition(),
    }
)
"""Name -> condition; the programs of the last one have no tags."""


class Row(NamedTuple):
    """One policy under one condition at one load, averaged over the seeds.

    Attributes:
        values: measure -> simulated value: goodputs per second, or throughput and seconds.
        ratios: measure -> ratio to fcfs; None if fcfs has 0.
        is_ok: whether the policy is not worse than fcfs; None for fcfs itself.
    """

    condition: str
    load: float
    policy: str
    values: Mapping[str, float]
    ratios: Mapping[str, float | None]
    is_ok: bool | None


def goodput_rows(condition: str, comparison: Comparison) -> Iterator[Row]:
    """Both goodputs of every policy, and the verdict."""
    for load in comparison.plan.loads:
        means = {
            label: [fmean(each) for each in zip(*comparison.goodputs(label, load), strict=True)]
            for label in map(label_of, comparison.plan.policies)
        }
        for policy, values in means.items():
            pairs = list(zip(values, means[BASELINE], strict=True))
            yield Row(
                condition,
                load,
                policy,
                dict(zip(GOODPUTS, values, strict=True)),
                dict(zip(GOODPUTS, [ratio(*pair) for pair in pairs], strict=True)),
                None
                if policy == BASELINE
                else all(value >= FLOOR * baseline for value, baseline in pairs),
            )


def untagged_rows(load: float, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Row]:
    """Throughput and latency of every policy without tags, and the verdict.

    Args:
        results: policy -> results of LooseExperiment, one per seed.
    """
    baseline = {name: mean(results[BASELINE], name) for name in (THROUGHPUT, E2EL)}
    for policy, documents in results.items():
        values = {name: mean(documents, name) for name in baseline}
        is_ok = (
            all_finished(documents)
            and values[THROUGHPUT] >= FLOOR * baseline[THROUGHPUT]
            and values[E2EL] <= (2.0 - FLOOR) * baseline[E2EL]
        )
        yield Row(
            NO_TAGS,
            load,
            policy,
            values,
            {name: ratio(value, baseline[name]) for name, value in values.items()},
            None if policy == BASELINE else is_ok,
        )


def table(rows: Sequence[Row]) -> str:
    """Text tables: conditions with SLOs, then without, then the verdicts."""
    tagged = [row for row in rows if row.condition != NO_TAGS]
    untagged = [row for row in rows if row.condition == NO_TAGS]
    lines = []
    if tagged:
        lines += ["simulated goodput: what met its SLO, a second; x: to fcfs"]
        lines += _lines(tagged, ("tokens/s", "requests/s"))
    if untagged:
        lines += ["simulated, no request carries a tag; x: to fcfs"]
        lines += _lines(untagged, ("tokens/s", "mean E2EL s"))
    for policy in dict.fromkeys(row.policy for row in rows if row.is_ok is not None):
        own_rows = [row for row in rows if row.policy == policy]
        missed = [f"{row.condition} at {row.load:g}x" for row in own_rows if not row.is_ok]
        summary = f"{policy}: {len(own_rows) - len(missed)} of {len(own_rows)} ok"
        lines.append(f"{summary}; MISS: {', '.join(missed)}" if missed else summary)
    return "\n".join(lines)


def _lines(rows: Sequence[Row], titles: tuple[str, str]) -> Iterator[str]:
    width = max(16, *(len(row.policy) for row in rows))
    heads = "".join(f"{title:>13} {'x':>6}" for title in titles)
    yield f"{'condition':14}{'load':>5}  {'policy':{width}}{heads}"
    for row in rows:
        cells = "".join(
            f"{row.values[name]:13,.2f} {format_ratio(row.ratios[name]):>6}" for name in row.values
        )
        line = f"{row.condition:14}{row.load:5g}  {row.policy:{width}}{cells}"
        yield f"{line}  {verdict(row.is_ok)}".rstrip()


def run_conditions(arguments: argparse.Namespace, running: Session) -> Iterator[Row]:
    """The rows of every requested condition."""
    specs = policies(arguments.policy or [OURS])
    for name in dict.fromkeys(arguments.condition or CONDITIONS):
        config = CONDITIONS[name].config(window_s=arguments.window_s, warmup_s=arguments.warmup_s)
        plan = Plan(
            config=config,
            policies=specs,
            loads=loads(arguments),
            seeds=seeds(arguments),
            with_bound=False,
        )
        if name == NO_TAGS:
            yield from _without_tags(plan, running)
        else:
            yield from goodput_rows(name, running.compare(name, plan))


def _without_tags(plan: Plan, running: Session) -> Iterator[Row]:
    capacity = running.capacity(plan.config)

    def task(load: float, policy: PolicySpec, seed: int) -> LooseExperiment:
        return LooseExperiment(
            config=plan.config,
            policy=policy,
            rate_per_s=load * capacity,
            seed=seed,
            is_tagged=False,
        )

    for load in plan.loads:
        tasks = [task(load, policy, seed) for policy in plan.policies for seed in plan.seeds]
        documents = iter(running.run(f"{NO_TAGS} at {load:g}x", tasks))
        results = {
            label_of(policy): [next(documents) for _ in plan.seeds] for policy in plan.policies
        }
        yield from untagged_rows(load, results)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    with session(arguments.jobs) as running:
        rows = list(run_conditions(arguments, running))
    result = document(
        arguments,
        rows=[row._asdict() for row in rows],
    )
    print_result(result, table(rows), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="1.0,2.0")
    parser.add_argument("--policy", action="append", help="next to fcfs; repeatable; default: calm")
    parser.add_argument("--condition", action="append", choices=CONDITIONS, help="default: all")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
