"""What each ingredient of calm is worth: calm beside itself with one of them left out.

    python -m benchmarks.ablation [--workload mixed] [--variant price] [--loads 1,1.5,2] [--seeds 3]
        [--window-s 600] [--jobs 2] [--json]

All in virtual time, with the production scheduler. An ingredient's share of the gain is what is
lost without it, as a part of what calm is ahead of fcfs, and of calm_published. Shares need not
add up to one: where one ingredient is left out, others may do a part of its work. A negative share
is what calm would win without it. "oracle predictions" are no ingredient: calm itself, told the
true lengths and futures.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.comparing import (
    BASELINE,
    OURS,
    Session,
    exit_code,
    loads,
    options,
    ratio,
    session,
    setting_of,
    shown,
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
        "timely at the shortest steps is enough": {"margin": 0.0},
        "no gate for who would displace what has begun": {"gate": 0.0},
        "execution by density": {"urgent": False},
        "lengths not corrected": {"correct": False},
        "no admitted set": {"utilisation": 1e6},
        "no headroom": {"utilisation": 1.0},
        "a fixed headroom of 15%": {"utilisation": 0.85},
        "nobody saved by shorter steps": {"save": False},
        "a pace of 30 ms, whatever arrives": {"pace": 0.03},
        "a pace of 80 ms, whatever arrives": {"pace": 0.08},
        "no pace": {"pace": 1e6},
        "value in tokens only": {"token_share": 1.0},
        "value in requests only": {"token_share": 0.0},
        "a plan for 50 steps": {"frame_steps": 50},
        "96 at once": {"batch": 96},
        "no time for late work": {"leftover": 0.0},
    }
)
"""What is left out, and the parameters of calm that leave it out."""


class Choice(NamedTuple):
    """Variants that can be run, and those that cannot, each with the reason."""

    kept: Mapping[str, Params]
    skipped: Mapping[str, str]


class Score(NamedTuple):
    """One goodput of one row.

    Attributes:
        value: simulated, a second, averaged over the seeds.
        to_calm: the ratio to calm as it is; None where that is 0.
        of_fcfs, of_published: the share of calm's gain over these that is lost; None where calm
            gains nothing over them.
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


def chosen(variants: Mapping[str, Params], default: Params) -> Choice:
    """Those that calm knows and that are not what it does anyway.

    Args:
        default: calm's parameters.
    """
    kept, skipped = {}, {}
    for name, params in variants.items():
        unknown = [key for key in params if key not in default]
        if unknown:
            skipped[name] = f"calm takes no {', '.join(unknown)}"
        elif all(default[key] == value for key, value in params.items()):
            skipped[name] = "that is what calm does by default"
        else:
            kept[name] = params
    return Choice(kept, skipped)


def defaults() -> dict[str, Parameter]:
    """Calm's parameters and their values."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(POLICIES[OURS]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def named(kept: Mapping[str, Params]) -> dict[str, PolicySpec]:
    """All that is compared with the same predictions, by its name in the table."""
    whole = {name: PolicySpec(name) for name in (BASELINE, PUBLISHED, OURS)}
    return whole | {name: PolicySpec(OURS, params) for name, params in kept.items()}


def means_of(
    specs: Mapping[str, PolicySpec], found: Comparison, oracle: Comparison
) -> dict[float, dict[str, Goodputs]]:
    """Goodputs averaged over the seeds, by load and name; the oracle's last."""

    def mean(comparison: Comparison, spec: PolicySpec, load: float) -> Goodputs:
        columns = zip(*comparison.goodputs(label_of(spec), load), strict=True)
        return Goodputs(*map(fmean, columns))

    return {
        load: {name: mean(found, spec, load) for name, spec in specs.items()}
        | {ORACLE: mean(oracle, specs[OURS], load)}
        for load in found.plan.loads
    }


def rows(means: Mapping[float, Mapping[str, Goodputs]]) -> Iterator[Row]:
    """Each of them beside calm as it is."""
    for load, by_name in means.items():
        for name, goodputs in by_name.items():
            scores = [
                score(
                    value,
                    calm=by_name[OURS][at],
                    fcfs=by_name[BASELINE][at],
                    published=by_name[PUBLISHED][at],
                )
                for at, value in enumerate(goodputs)
            ]
            yield Row(load, name, *scores)


def score(value: float, *, calm: float, fcfs: float, published: float) -> Score:
    """A goodput in proportion."""
    return Score(
        value,
        ratio(value, calm),
        ratio(calm - value, calm - fcfs),
        ratio(calm - value, calm - published),
    )


def table(found: Sequence[Row], skipped: Mapping[str, str]) -> str:
    """For people."""
    width = max(16, *(len(row.name) for row in found))
    heads = "".join(
        f"{unit:>14} {'x':>6}{'fcfs':>7}{'publ.':>7}" for unit in ("tokens", "requests")
    )
    lines = []
    for load in dict.fromkeys(row.load for row in found):
        lines += [
            f"simulated goodput a second at {load:g}x; x: to calm; fcfs, publ.: the share of"
            " calm's gain over these that is lost",
            f"{'':{width}}{heads}",
        ]
        for row in found:
            if row.load == load:
                cells = "".join(map(_cells, (row.tokens, row.requests)))
                lines.append(f"{row.name:{width}}{cells}")
    lines += [f"not run: {name}: {reason}" for name, reason in skipped.items()]
    return "\n".join(lines)


def _cells(scored: Score) -> str:
    shares = "".join(
        f"{'-' if share is None else format(share, '.0%'):>7}"
        for share in (scored.of_fcfs, scored.of_published)
    )
    return f"{scored.value:14,.2f} {shown(scored.to_calm):>6}{shares}"


def measured(
    arguments: argparse.Namespace, kept: Mapping[str, Params], running: Session
) -> list[Row]:
    """Run all, the oracle's with the truth told."""
    specs = named(kept)
    plan = Plan(
        setting=setting_of(arguments, arguments.workload),
        policies=tuple(specs.values()),
        loads=loads(arguments),
        num_seeds=arguments.seeds,
        with_bound=False,
    )
    told = replace(plan.setting, predictions="oracle")
    found = running.compared("ablation", plan)
    oracle = running.compared(ORACLE, replace(plan, setting=told, policies=(specs[OURS],)))
    return list(rows(means_of(specs, found, oracle)))


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    wanted = {name: VARIANTS[name] for name in arguments.variant or VARIANTS}
    choice = chosen(wanted, defaults())
    for name, reason in choice.skipped.items():
        print(f"not run: {name}: {reason}", file=sys.stderr)
    with session(arguments.jobs) as running:
        found = measured(arguments, choice.kept, running)
    if arguments.json:
        document = {
            "simulated": True,
            "workload": arguments.workload,
            "window_s": arguments.window_s,
            "seeds": arguments.seeds,
            "variants": choice.kept,
            "skipped": choice.skipped,
            "rows": [
                {
                    "load": row.load,
                    "name": row.name,
                    "tokens": row.tokens._asdict(),
                    "requests": row.requests._asdict(),
                }
                for row in found
            ],
        }
        print(json.dumps(document))
    else:
        print(table(found, choice.skipped))


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    parser = options(__doc__ or "", loads="1.0,1.5,2.0")
    parser.add_argument("--workload", choices=WORKLOADS, default="mixed")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
