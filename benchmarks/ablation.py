"""Ablation of calm: its goodput with one ingredient left out at a time.

    python -m benchmarks.ablation [--workload mixed] [--loads 1,1.5,2] [--seeds 3]
        [--variant 'no price of what is to arrive'] [--window-s 600] [--jobs 2] [--json]

All in virtual time, with the production scheduler. An ingredient's share of the gain over fcfs is
(calm - variant) / (calm - fcfs), and likewise over calm_published. Shares need not add up to one:
other ingredients may do a part of the work of the one left out. A negative share means that calm is
better without the ingredient. "oracle predictions" is not an ingredient: it is calm with the true
lengths and futures as predictions.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.command import exit_code, print_result, say
from benchmarks.comparing import (
    BASELINE,
    OURS,
    Session,
    config_of,
    document,
    format_ratio,
    loads,
    options,
    ratio,
    seeds,
    session,
)
from serving.parameters import Parameter
from serving.policies.table import POLICIES, PolicySpec
from serving.sim.compare.compare import Comparison, Goodputs, Plan, label_of
from serving.sim.workloads.workloads import WORKLOADS

PUBLISHED = "calm_published"
ORACLE = "oracle predictions"
Params = Mapping[str, Parameter]

VARIANTS: Mapping[str, Params] = MappingProxyType(
    {
        "no price of what is to arrive": {"price": False},
        "lengths not corrected": {"correct": False},
        "no admitted set": {"utilisation": 1e6},
        "no headroom": {"utilisation": 1.0},
        "a pace of 30 ms, whatever arrives": {"pace": 0.03},
        "a pace of 80 ms, whatever arrives": {"pace": 0.08},
        "no pace": {"pace": 1e6},
        "value in tokens only": {"token_share": 1.0},
        "value in requests only": {"token_share": 0.0},
        "a plan for 50 steps": {"frame_steps": 50},
        "96 at once": {"batch": 96},
    }
)
"""Name of an ingredient that is left out -> the parameters of calm that leave it out."""


class Selection(NamedTuple):
    """The variants to run, and the skipped ones with the reason."""

    variants: Mapping[str, Params]
    skipped: Mapping[str, str]


class Score(NamedTuple):
    """One goodput of one row.

    Attributes:
        value: simulated, per second, averaged over the seeds.
        to_calm: ratio to the unchanged calm; None if that is 0.
        of_fcfs, of_published: share of calm's gain over these policies that is lost; None if calm
            has no gain over them.
    """

    value: float
    to_calm: float | None
    of_fcfs: float | None
    of_published: float | None


class Row(NamedTuple):
    """One policy or variant at one load."""

    load: float
    name: str
    tokens: Score
    requests: Score


def select_variants(variants: Mapping[str, Params], default: Params) -> Selection:
    """Select the variants with known parameters that differ from calm's defaults.

    Args:
        default: calm's parameters and their default values.
    """
    selected, skipped = {}, {}
    for name, params in variants.items():
        unknown = [key for key in params if key not in default]
        if unknown:
            skipped[name] = f"calm takes no {', '.join(unknown)}"
        elif all(default[key] == value for key, value in params.items()):
            skipped[name] = "that is what calm does by default"
        else:
            selected[name] = params
    return Selection(selected, skipped)


def defaults() -> dict[str, Parameter]:
    """Calm's parameters and their default values."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(POLICIES[OURS]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def policy_specs(variants: Mapping[str, Params]) -> dict[str, PolicySpec]:
    """All policies that run with the same predictions: name in the table -> policy."""
    policies = {name: PolicySpec(name) for name in (BASELINE, PUBLISHED, OURS)}
    return policies | {name: PolicySpec(OURS, params) for name, params in variants.items()}


def means_of(
    specs: Mapping[str, PolicySpec], comparison: Comparison, oracle: Comparison
) -> dict[float, dict[str, Goodputs]]:
    """Load -> name -> goodputs averaged over the seeds; the oracle's last."""

    def mean(source: Comparison, spec: PolicySpec, load: float) -> Goodputs:
        columns = zip(*source.goodputs(label_of(spec), load), strict=True)
        return Goodputs(*map(fmean, columns))

    return {
        load: {name: mean(comparison, spec, load) for name, spec in specs.items()}
        | {ORACLE: mean(oracle, specs[OURS], load)}
        for load in comparison.plan.loads
    }


def rows(means: Mapping[float, Mapping[str, Goodputs]]) -> Iterator[Row]:
    """Each policy and variant at each load, in proportion to the unchanged calm."""
    for load, by_name in means.items():
        for name, goodputs in by_name.items():
            scores = [
                score(
                    value,
                    calm=by_name[OURS][index],
                    fcfs=by_name[BASELINE][index],
                    published=by_name[PUBLISHED][index],
                )
                for index, value in enumerate(goodputs)
            ]
            yield Row(load, name, *scores)


def score(value: float, *, calm: float, fcfs: float, published: float) -> Score:
    """A goodput in proportion to calm's, and to its gains over fcfs and calm_published."""
    return Score(
        value,
        ratio(value, calm),
        ratio(calm - value, calm - fcfs),
        ratio(calm - value, calm - published),
    )


def table(rows: Sequence[Row], skipped: Mapping[str, str]) -> str:
    """The rows as a text table."""
    width = max(16, *(len(row.name) for row in rows))
    heads = "".join(
        f"{unit:>14} {'x':>6}{'fcfs':>7}{'publ.':>7}" for unit in ("tokens", "requests")
    )
    lines = []
    for load in dict.fromkeys(row.load for row in rows):
        lines += [
            f"simulated goodput a second at {load:g}x; x: to calm; fcfs, publ.: the share of"
            " calm's gain over these that is lost",
            f"{'':{width}}{heads}",
        ]
        for row in rows:
            if row.load == load:
                cells = "".join(map(_cells, (row.tokens, row.requests)))
                lines.append(f"{row.name:{width}}{cells}")
    lines += [f"not run: {name}: {reason}" for name, reason in skipped.items()]
    return "\n".join(lines)


def _cells(score: Score) -> str:
    shares = "".join(
        f"{'-' if share is None else format(share, '.0%'):>7}"
        for share in (score.of_fcfs, score.of_published)
    )
    return f"{score.value:14,.2f} {format_ratio(score.to_calm):>6}{shares}"


def compare_variants(
    arguments: argparse.Namespace, variants: Mapping[str, Params], running: Session
) -> list[Row]:
    """Run all policies and variants, and calm with oracle predictions."""
    specs = policy_specs(variants)
    plan = Plan(
        config=config_of(arguments, arguments.workload),
        policies=tuple(specs.values()),
        loads=loads(arguments),
        seeds=seeds(arguments),
        with_bound=False,
    )
    oracle_config = replace(plan.config, predictions="oracle")
    oracle_plan = replace(plan, config=oracle_config, policies=(specs[OURS],))
    comparison = running.compare("ablation", plan)
    oracle = running.compare(ORACLE, oracle_plan)
    return list(rows(means_of(specs, comparison, oracle)))


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    requested = {name: VARIANTS[name] for name in arguments.variant or VARIANTS}
    selection = select_variants(requested, defaults())
    for name, reason in selection.skipped.items():
        say(f"not run: {name}: {reason}")
    with session(arguments.jobs) as running:
        results = compare_variants(arguments, selection.variants, running)
    result = document(
        arguments,
        workload=arguments.workload,
        variants=selection.variants,
        skipped=selection.skipped,
        rows=[
            {
                "load": row.load,
                "name": row.name,
                "tokens": row.tokens._asdict(),
                "requests": row.requests._asdict(),
            }
            for row in results
        ],
    )
    print_result(result, table(results, selection.skipped), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="1.0,1.5,2.0")
    parser.add_argument("--workload", choices=WORKLOADS, default="mixed")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
