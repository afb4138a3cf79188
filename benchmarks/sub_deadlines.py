"""When the sub-deadlines of stages steer better than the deadline of their program.

    python -m benchmarks.sub_deadlines [--workload agentic ...] [--policy calm ...] [--loads 1,2]
        [--seeds 2] [--window-s 120] [--jobs 2] [--json]

All in virtual time, with the production scheduler. Each stage of a program is tagged with the
program's deadline ("none"), with an even share of the time left ("even"), or with the share of it
that the stage would take on an idle machine ("shares"): the best that could be learned. The future
work of programs is predicted with an error, by half or twice as much, or not at all ("missing").
A workload "X, long tools" has tools that take TOOL_FACTOR times as long, and as much more time.
The table has the goodput of each kind of sub-deadlines / that without any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean, geometric_mean
from typing import NamedTuple

from benchmarks.command import check_once, exit_code, print_result
from benchmarks.comparing import (
    Session,
    config_of,
    document,
    format_ratio,
    loads,
    options,
    ratio,
    session,
)
from benchmarks.sub_deadline_runs import (
    BIASES,
    EVEN,
    NONE,
    SHARES,
    SUB_DEADLINES,
    DividedExperiment,
)
from cli.errors import BadInput
from cli.work.bench_request import policy_of
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import Plan, label_of
from serving.sim.workloads.workloads import WORKLOADS
from serving.slo import SloKind

FIRST_SEED = 10
TOOL_FACTOR = 10.0
LONG_TOOLS = ", long tools"
POLICIES = ("edf", "lsdf", "calm")
READS_FUTURES = ("slos_serve", "calm")
"""The policies that read what is predicted of a program's later stages; a user's own may too."""

ANY = "any"
"""The future of a policy that reads none; what it is run with is "noisy"."""

COMPOUND_WORKLOADS = (
    *("mixed", "agentic", "tools", "chat", "long_answers", "heavy_tails", "half_promised"),
    f"agentic{LONG_TOOLS}",
)
METRICS = ("tokens", "requests")
MEAN = "geometric mean"


class Cell(NamedTuple):
    """The parameters of one row."""

    policy: str
    future: str
    workload: str
    load: float
    sub_deadlines: str


Goodputs = Mapping[Cell, tuple[float, float]]
"""Tokens and requests a second, averaged over the seeds."""


def plans(arguments: argparse.Namespace) -> dict[str, Plan]:
    """Workload -> its checked plan.

    Raises:
        BadInput, InvalidWorkload, InvalidEngineConfig: an option is unknown, out of range, or
            given twice.
    """
    workloads = arguments.workload or COMPOUND_WORKLOADS
    check_once("--workload", workloads)
    check_once("--future", arguments.future or ())
    for workload in workloads:
        _check_workload(workload)
    return {
        workload: Plan(
            config=config_of(arguments, workload.removesuffix(LONG_TOOLS)),
            policies=tuple(map(policy_of, arguments.policy or POLICIES)),
            loads=loads(arguments),
            seeds=tuple(range(arguments.first_seed, arguments.first_seed + arguments.seeds)),
            with_bound=False,
        )
        for workload in workloads
    }


def _check_workload(written: str) -> None:
    name = written.removesuffix(LONG_TOOLS)
    compound = [
        each
        for each, workload in WORKLOADS.items()
        if any(task.kind is SloKind.COMPOUND for task in workload.tasks)
    ]
    if name not in compound:
        reason = "has no compound programs, so nothing is divided" if name in WORKLOADS else ""
        known = f"known are {', '.join(compound)}, each also as 'NAME{LONG_TOOLS}'"
        raise BadInput(f"--workload {written!r}: {reason or 'unknown'}; {known}")


def measured(
    planned: Mapping[str, Plan], futures: Sequence[str], running: Session
) -> dict[Cell, tuple[float, float]]:
    """The goodput of every cell: tokens and requests a second, averaged over the seeds."""
    tasks: dict[Cell, list[DividedExperiment]] = {}
    for workload, plan in planned.items():
        capacity = running.capacity(plan.config)
        for (policy, future), load, kind in product(
            _policies_and_futures(plan.policies, futures), plan.loads, SUB_DEADLINES
        ):
            tasks[Cell(label_of(policy), future, workload, load, kind)] = [
                DividedExperiment(
                    config=plan.config,
                    policy=policy,
                    load=load,
                    rate_per_s=load * capacity,
                    seed=seed,
                    sub_deadlines=kind,
                    future="noisy" if future == ANY else future,
                    tool_factor=TOOL_FACTOR if workload.endswith(LONG_TOOLS) else 1.0,
                )
                for seed in plan.seeds
            ]
    results = iter(running.run("sub-deadlines", [task for own in tasks.values() for task in own]))
    goodputs = {}
    for cell, own in tasks.items():
        documents = [next(results) for _ in own]
        tokens, requests = (fmean(each[name] for each in documents) for name in METRICS)
        goodputs[cell] = tokens, requests
    return goodputs


def _policies_and_futures(
    policies: Sequence[PolicySpec], futures: Sequence[str]
) -> list[tuple[PolicySpec, str]]:
    """Each policy with each kind of future; only with ANY if it reads none."""
    return [
        (policy, future)
        for policy in policies
        for future in (futures if policy.name in READS_FUTURES or policy.is_own else [ANY])
    ]


class Row(NamedTuple):
    """Goodput with one kind of sub-deadlines / without, tokens and requests."""

    cell: Cell
    goodput: tuple[float, float]
    to_none: tuple[float | None, float | None]


def rows_of(goodputs: Mapping[Cell, tuple[float, float]]) -> list[Row]:
    """The cells in proportion to those without sub-deadlines."""
    rows = []
    for cell, goodput in goodputs.items():
        without = goodputs[cell._replace(sub_deadlines=NONE)]
        tokens, requests = (ratio(*pair) for pair in zip(goodput, without, strict=True))
        rows.append(Row(cell, goodput, (tokens, requests)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """One line for each policy, future, load and workload; the geometric means below."""
    by_cell = {row.cell: row for row in rows}
    groups: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in by_cell:
        if cell.sub_deadlines == NONE:
            groups.setdefault((cell.policy, cell.future, cell.load), []).append(cell)
    policy_width = max(len(cell.policy) for cell in by_cell) + 2
    width = max(len(name) for name in [MEAN, *(cell.workload for cell in by_cell)])
    lines = [
        "simulated goodput with sub-deadlines / without: tokens, requests",
        f"{'policy':{policy_width}}{'future':9}{'load':>5}  {'workload':{width}}"
        f"{'tokens/s':>10}{'req/s':>8}{'even':>13}{'shares':>13}",
    ]
    for (policy, future, load), cells in groups.items():
        head = f"{policy:{policy_width}}{future:9}{load:5g}  "
        for cell in cells:
            tokens, requests = by_cell[cell].goodput
            ratios = (by_cell[cell._replace(sub_deadlines=kind)].to_none for kind in (EVEN, SHARES))
            shown = "".join(f"{'/'.join(map(format_ratio, pair)):>13}" for pair in ratios)
            lines.append(f"{head}{cell.workload:{width}}{tokens:10,.0f}{requests:8.2f}{shown}")
        means = "".join(
            f"{'/'.join(map(format_ratio, _means(by_cell, cells, kind))):>13}"
            for kind in (EVEN, SHARES)
        )
        lines.append(f"{head}{MEAN:{width}}{'':18}{means}")
    blind = dict.fromkeys(cell.policy for cell in by_cell if cell.future == ANY)
    if blind:
        lines.append(
            f"{ANY}: no futures are read by {', '.join(blind)}, so --future changes nothing"
        )
    return "\n".join(lines)


def _means(
    by_cell: Mapping[Cell, Row], cells: Sequence[Cell], kind: str
) -> tuple[float | None, float | None]:
    columns = zip(
        *(by_cell[cell._replace(sub_deadlines=kind)].to_none for cell in cells), strict=True
    )
    tokens, requests = (
        geometric_mean(known) if (known := [each for each in column if each]) else None
        for column in columns
    )
    return tokens, requests


def simulate(arguments: argparse.Namespace) -> None:
    """Check all options, simulate and print."""
    planned = plans(arguments)
    with session(arguments.jobs) as running:
        rows = rows_of(measured(planned, arguments.future or list(BIASES), running))
    result = document(
        arguments,
        rows=[
            row.cell._asdict() | {"goodput": row.goodput, "to_none": row.to_none} for row in rows
        ],
    )
    print_result(result, table(rows), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="1.0,2.0", seeds=2)
    parser.set_defaults(window_s=120.0)
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help=f"one with compound programs, or 'NAME{LONG_TOOLS}'; default: eight of them",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"NAME or NAME:KEY=VALUE,...; default: {' '.join(POLICIES)}",
    )
    parser.add_argument(
        "--future",
        nargs="+",
        action="extend",
        choices=BIASES,
        help=f"for {', '.join(READS_FUTURES)} and your own policies, which read it; default: all",
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help=f"default: {FIRST_SEED}")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
