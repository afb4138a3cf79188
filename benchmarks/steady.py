"""How far a policy is from what can be had in the long run, simulated in virtual time.

    python -m benchmarks.steady [--policy calm] [--loads 1.0,1.5,2.0] [--window-s 2400] [--json]

Over the upper bound, in a window so long that its edges matter little: of a short one the bound
serves what is left over after its end, when no other program stands in the way. And over what the
best single pace could earn with all work known, which is an estimate and no bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from benchmarks.comparing import (
    OURS,
    exit_code,
    loads,
    options,
    ratio,
    say,
    session,
    setting_of,
    shown,
)
from benchmarks.one_pace import Best, best_of_each
from cli.work.bench_request import policy_of
from serving.sim.bound.least_work import Prices
from serving.sim.compare.compare import Comparison, Goodputs, Plan, label_of

WINDOW_S = 2400.0
BOUND, ONE_PACE = "upper bound", "one pace"


class Row(NamedTuple):
    """Goodput of the policy or of what it is held against, and the policy's share of that.

    Attributes:
        step_ms: of the best pace, for tokens and for requests.
    """

    load: float
    name: str
    goodputs: Goodputs
    shares: tuple[float | None, float | None]
    step_ms: tuple[float, float] | None = None


def rows(found: Comparison) -> Iterator[Row]:
    """For each load the policy, the bound, and the best pace: means over the seeds."""
    say("steady: trying paces")
    [policy] = map(label_of, found.plan.policies)
    for load in found.plan.loads:
        ours = _mean(found.goodputs(policy, load))
        yield Row(load, policy, ours, (1.0, 1.0))
        yield _held(load, BOUND, ours, _mean(found.bounds_at(load)))
        paced = [_best(found, load, seed) for seed in range(found.plan.num_seeds)]
        most = _mean([Goodputs(tokens.goodput, requests.goodput) for tokens, requests in paced])
        tokens_ms, requests_ms = (
            1e3 * fmean(each.step_s for each in column) for column in zip(*paced, strict=True)
        )
        yield _held(load, ONE_PACE, ours, most)._replace(step_ms=(tokens_ms, requests_ms))


def table(found: Sequence[Row]) -> str:
    """For people."""
    width = max(len(row.name) for row in found)
    lines = [
        "simulated goodput a second; x: the policy's share of it",
        f"{'load':>5}  {'':{width}}{'tokens':>10} {'x':>5}{'requests':>10} {'x':>5}  steps, ms",
    ]
    for row in found:
        cells = (
            f"{row.goodputs.tokens:10,.0f} {shown(row.shares[0]):>5}"
            f"{row.goodputs.requests:10.3f} {shown(row.shares[1]):>5}"
        )
        told = "" if row.step_ms is None else "  {:.0f} / {:.0f}".format(*row.step_ms)
        lines.append(f"{row.load:5g}  {row.name:{width}}{cells}{told}")
    return "\n".join(lines)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    plan = Plan(
        setting=setting_of(arguments),
        policies=(policy_of(arguments.policy),),
        loads=loads(arguments),
        num_seeds=arguments.seeds,
    )
    with session(arguments.jobs) as running:
        found = list(rows(running.compared("steady", plan)))
    if arguments.json:
        document = {
            "simulated": True,
            "window_s": arguments.window_s,
            "seeds": arguments.seeds,
            "rows": [row._asdict() | {"goodputs": row.goodputs._asdict()} for row in found],
        }
        print(json.dumps(document))
    else:
        print(table(found))


def _best(found: Comparison, load: float, seed: int) -> tuple[Best, Best]:
    setting = found.plan.setting
    offered = setting.generated_load(rate_per_s=load * found.capacity_programs_s, seed=seed)
    cost, step_tokens = setting.machine.step_cost, setting.step_tokens
    prices = Prices(cost=cost, step_tokens=step_tokens, slots=setting.slots)
    return best_of_each(offered.programs, prices, window_s=offered.window_s)


def _mean(values: Sequence[Goodputs]) -> Goodputs:
    return Goodputs(*map(fmean, zip(*values, strict=True)))


def _held(load: float, name: str, ours: Goodputs, most: Goodputs) -> Row:
    shares = ratio(ours.tokens, most.tokens), ratio(ours.requests, most.requests)
    return Row(load, name, most, shares)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    parser = options(__doc__ or "", loads="1.0,1.5,2.0", seeds=1)
    parser.set_defaults(window_s=WINDOW_S)
    parser.add_argument("--policy", default=OURS, help="NAME or NAME:KEY=VALUE,...")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
