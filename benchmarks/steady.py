"""A policy's goodput in a long window / the upper bound and an estimate, simulated in virtual time.

    python -m benchmarks.steady [--policy calm] [--loads 1.0,1.5,2.0] [--window-s 2400] [--json]

The window is so long that its edges matter little. After the end of a short window the bound serves
the remaining programs without competition from later ones. The estimate is the best goodput with
one constant step duration and all work known in advance (one_pace.py); it is not a bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from benchmarks.command import exit_code, print_result, say
from benchmarks.comparing import (
    OURS,
    config_of,
    document,
    format_ratio,
    loads,
    options,
    ratio,
    seeds,
    session,
)
from benchmarks.one_pace import Best, best_of_each
from cli.work.bench_request import policy_of
from serving.sim.bound.least_work import LeastWork
from serving.sim.compare.compare import Comparison, Goodputs, Plan, label_of

WINDOW_S = 2400.0
BOUND, ONE_PACE = "upper bound", "one pace"


class Row(NamedTuple):
    """Goodput of the policy, of the bound or of the estimate at one load.

    Attributes:
        shares: the policy's token and request goodput / these goodputs; None if they are 0.
        step_ms: step durations of the best pace, for tokens and for requests.
    """

    load: float
    name: str
    goodputs: Goodputs
    shares: tuple[float | None, float | None]
    step_ms: tuple[float, float] | None = None


def rows(comparison: Comparison) -> Iterator[Row]:
    """For each load the policy, the bound, and the best pace: means over the seeds."""
    say("steady: searching the best pace")
    [policy] = map(label_of, comparison.plan.policies)
    for load in comparison.plan.loads:
        own = _mean(comparison.goodputs(policy, load))
        yield Row(load, policy, own, (1.0, 1.0))
        yield _reference_row(load, BOUND, own, _mean(comparison.bounds_at(load)))
        best = [_best(comparison, load, seed) for seed in comparison.plan.seeds]
        estimate = _mean([Goodputs(tokens.goodput, requests.goodput) for tokens, requests in best])
        tokens_ms, requests_ms = (
            1e3 * fmean(each.step_s for each in column) for column in zip(*best, strict=True)
        )
        row = _reference_row(load, ONE_PACE, own, estimate)
        yield row._replace(step_ms=(tokens_ms, requests_ms))


def table(rows: Sequence[Row]) -> str:
    """The rows as a text table."""
    width = max(len(row.name) for row in rows)
    lines = [
        "simulated goodput a second; x: the policy's share of it",
        f"{'load':>5}  {'':{width}}{'tokens':>10} {'x':>5}{'requests':>10} {'x':>5}  steps, ms",
    ]
    for row in rows:
        cells = (
            f"{row.goodputs.tokens:10,.0f} {format_ratio(row.shares[0]):>5}"
            f"{row.goodputs.requests:10.3f} {format_ratio(row.shares[1]):>5}"
        )
        step_text = "" if row.step_ms is None else "  {:.0f} / {:.0f}".format(*row.step_ms)
        lines.append(f"{row.load:5g}  {row.name:{width}}{cells}{step_text}")
    return "\n".join(lines)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    plan = Plan(
        config=config_of(arguments),
        policies=(policy_of(arguments.policy),),
        loads=loads(arguments),
        seeds=seeds(arguments),
    )
    with session(arguments.jobs) as running:
        results = list(rows(running.compare("steady", plan)))
    result = document(
        arguments,
        rows=[row._asdict() | {"goodputs": row.goodputs._asdict()} for row in results],
    )
    print_result(result, table(results), as_json=arguments.json)


def _best(comparison: Comparison, load: float, seed: int) -> tuple[Best, Best]:
    config = comparison.plan.config
    generated = config.generate_load(rate_per_s=load * comparison.capacity_programs_s, seed=seed)
    cost, step_tokens = config.machine.step_cost, config.step_tokens
    least_work = LeastWork(cost=cost, step_tokens=step_tokens, slots=config.slots)
    return best_of_each(generated.programs, least_work, window_s=generated.window_s)


def _mean(values: Sequence[Goodputs]) -> Goodputs:
    return Goodputs(*map(fmean, zip(*values, strict=True)))


def _reference_row(load: float, name: str, own: Goodputs, reference: Goodputs) -> Row:
    shares = ratio(own.tokens, reference.tokens), ratio(own.requests, reference.requests)
    return Row(load, name, reference, shares)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="1.0,1.5,2.0", seeds=1)
    parser.set_defaults(window_s=WINDOW_S)
    parser.add_argument("--policy", default=OURS, help="NAME or NAME:KEY=VALUE,...")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
