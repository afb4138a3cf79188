"""Deadlines kept end to end by policy: two pipelines on the real engine with a real model.

    python -m benchmarks.end_to_end [--policy fcfs ...] [--loads 0.6,2.0] [--seeds 3]
        [--window-s 50] [--json FILE]

First period: runs of deep research and trees of thoughts, one at a time and without deadlines, are
recorded in a store, and a fit makes patterns and length models of them. Load 1.0 is the rate at
which fcfs ends a backlog of other runs. A cell is one policy at one load and seed: a new engine and
a copy of that store, on which runs arrive as a Poisson process, half of each pipeline. A run's
deadline is a factor, drawn evenly, times the mean duration of its pipeline's runs in the first
period. Arrivals, tasks and deadlines are the same for every policy, and other tasks than those that
were learned from. In a cell a run that ends leaves its pattern for later ones, and nothing is
fitted again.

Both pipelines hand over what they have at their deadline. "kept" is a whole result by the deadline:
a report from which nothing was left out, a puzzle that is solved. "in time" counts every result by
the deadline. "matched" is the share of runs for which past runs were found when the deadline was
divided first, "learned" that of the stages with a sub-deadline in the proportions of past runs.
"waited" is the time for which this process's threads were ready and had no core, per second: the
mean of the cells. What else runs on the machine makes it longer, and the load higher.

Engine, runs and documents' index share this process. Run nothing else at the same time. Seeds are
10 and up, which nothing was tuned on; the order of policies differs from seed to seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.command import exit_code, positive, say
from benchmarks.comparing import loads
from benchmarks.end_to_end_runs import (
    Cell,
    Learned,
    Outcome,
    Workplace,
    drain,
    learn,
    measure,
    say_cell,
)
from benchmarks.end_to_end_tasks import (
    BEAM,
    PIPELINES,
    ROUNDS,
    WIDTH,
    Arrival,
    Task,
    arrivals_of,
    tasks,
)
from cli.errors import BadInput
from cli.work.bench_request import policies_of
from serving.policies.table import PolicySpec

POLICIES = ("fcfs", "edf", "calm")
FIRST_SEED = 10
BOTH = "both"


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured.

    Attributes:
        capacity_runs_s: the rate of load 1.0.
    """

    learned: Learned
    capacity_runs_s: float
    cells: tuple[Cell, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; results to stdout, progress to stderr; returns the exit code."""
    return exit_code(partial(run, _parser().parse_args(arguments)))


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    policies = policies_of(options.policy or POLICIES)
    _check(options)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Workplace(Path(folder), model=options.model)
        measured = asyncio.run(_measured(place, policies, options))
    print(table(measured, window_s=options.window_s))
    say(f"measured in {(time.monotonic() - began_s) / 60:.0f} minutes")


def _check(options: argparse.Namespace) -> None:
    """Reject impossible options before anything slow begins; raises BadInput."""
    if not (asked := loads(options)) or min(asked) <= 0:
        raise BadInput(f"--loads {options.loads!r}: must be above 0")
    low, high = options.factors
    if not 0 < low <= high:
        raise BadInput(f"--factors {low:g} {high:g}: must be above 0, the lower one first")
    if options.window_s <= 0 or options.warmup_s < 0:
        raise BadInput(f"--window-s {options.window_s:g}: must be above 0, --warmup-s not below")


async def _measured(
    place: Workplace, policies: Sequence[PolicySpec], options: argparse.Namespace
) -> Measured:
    """All cells; the JSON file has those that are measured already."""
    to_learn, to_measure = tasks()
    first = {name: to_learn[name][: options.first_runs] for name in PIPELINES}
    say(f"first period: {options.first_runs} runs of each pipeline, one at a time")
    learned = await learn(place, "learned", first)
    say(learned_line(learned))
    backlog = [
        task
        for together in zip(*(to_measure[name] for name in PIPELINES), strict=False)
        for task in together
    ][: options.backlog]
    capacity = await drain(place, backlog)
    say(f"fcfs drains {capacity:.3f} runs/s")
    measured = Measured(learned, capacity)
    for number, seed in enumerate(range(options.first_seed, options.first_seed + options.seeds)):
        order = [*policies[number % len(policies) :], *policies[: number % len(policies)]]
        for load in loads(options):
            arrivals = _arrivals(to_measure, learned, load * capacity, seed, options)
            for policy in order:
                cell = await measure(
                    place,
                    policy,
                    arrivals,
                    load=load,
                    seed=seed,
                    warm_up_with=[first[name][0] for name in PIPELINES],
                    learned="learned",
                )
                say_cell(cell)
                measured = replace(measured, cells=(*measured.cells, cell))
                if options.json:
                    text = json.dumps(document(measured, options), indent=1)
                    options.json.write_text(text, encoding="utf-8")
    return measured


def _arrivals(
    given: Mapping[str, Sequence[Task]],
    learned: Learned,
    rate_per_s: float,
    seed: int,
    options: argparse.Namespace,
) -> list[Arrival]:
    return arrivals_of(
        given,
        learned.isolated_s,
        rate_per_s=rate_per_s,
        factors=tuple(options.factors),
        warmup_s=options.warmup_s,
        window_s=options.window_s,
        seed=seed,
    )


def learned_line(learned: Learned) -> str:
    """What was recorded and learned in the first period."""
    alone = ", ".join(f"{name} {learned.isolated_s[name]:.1f} s" for name in PIPELINES)
    known = "; ".join(
        f"{name}: {fit.num_patterns} patterns of {fit.num_runs} runs, lengths of {fit.num_calls}"
        f" calls{' (a forest)' if fit.has_length_model else ''}"
        for name, fit in learned.fits.items()
    )
    return f"{learned.runs} recorded runs; a run alone: {alone}\n{known}"


def table(measured: Measured, *, window_s: float) -> str:
    """A text table: by load and pipeline, each policy over all seeds, and by seed."""
    lines = [
        f"deep research: {ROUNDS} round, {WIDTH} further question; trees of thoughts: Game of 24,"
        f" beam {BEAM}",
        learned_line(measured.learned),
        f"load 1.0: {60 * measured.capacity_runs_s:.1f} runs a minute, which fcfs drains",
        f"{'load':<6}{'pipeline':<20}{'policy':<8}{'runs':>5}{'kept':>6}{'by seed':>18}"
        f"{'kept/min':>10}{'by seed':>18}{'in time':>9}{'matched':>9}{'learned':>9}{'waited':>9}",
    ]
    cells = measured.cells
    for load in sorted({cell.load for cell in cells}):
        for pipeline in (*PIPELINES, BOTH):
            for policy in dict.fromkeys(cell.policy for cell in cells):
                seeds = [cell for cell in cells if (cell.policy, cell.load) == (policy, load)]
                row = _row([of_pipeline(cell, pipeline) for cell in seeds], window_s)
                lines.append(f"{load:<6g}{pipeline:<20}{policy:<8}{row}{_waited(seeds):>9}")
    return "\n".join(lines)


def of_pipeline(cell: Cell, pipeline: str) -> list[Outcome]:
    """The outcomes of a cell's runs of one pipeline, or of both."""
    return [each for each in cell.outcomes if pipeline in (BOTH, each.pipeline)]


def _row(by_seed: Sequence[Sequence[Outcome]], window_s: float) -> str:
    """The columns of one policy; shares over all runs of all seeds."""
    every = [each for outcomes in by_seed for each in outcomes]
    kept = [sum(each.is_kept for each in outcomes) for outcomes in by_seed]
    rates = [60 * count / window_s for count in kept]
    shares = " ".join(
        _percent(count, len(outcomes)) for count, outcomes in zip(kept, by_seed, strict=True)
    )
    num_stages = sum(len(each.sources) for each in every)
    return (
        f"{len(every):>5}{_percent(sum(kept), len(every)):>6}{shares:>18}"
        f"{sum(rates) / len(rates):>10.1f}{' '.join(f'{rate:.1f}' for rate in rates):>18}"
        f"{_percent(sum(each.in_time for each in every), len(every)):>9}"
        f"{_percent(sum(each.is_matched for each in every), len(every)):>9}"
        f"{_percent(sum(each.num_learned for each in every), num_stages):>9}"
    )


def _percent(count: int, total: int) -> str:
    return f"{count / total:.0%}" if total else "-"


def _waited(cells: Sequence[Cell]) -> str:
    waited = [cell.waited for cell in cells if cell.waited is not None]
    return f"{fmean(waited):.2f}" if waited else "-"


def document(measured: Measured, options: argparse.Namespace) -> dict[str, Any]:
    """All that was measured, with the outcome of each run, as JSON."""
    learned = measured.learned
    return {
        "sizes": {"rounds": ROUNDS, "width": WIDTH, "beam": BEAM},
        "model": options.model,
        "window_s": options.window_s,
        "warmup_s": options.warmup_s,
        "factors": options.factors,
        "recorded_runs": learned.runs,
        "isolated_s": learned.isolated_s,
        "patterns": {name: fit.num_patterns for name, fit in learned.fits.items()},
        "calls": {name: fit.num_calls for name, fit in learned.fits.items()},
        "capacity_runs_s": measured.capacity_runs_s,
        "cells": [
            asdict(cell)
            | {"outcomes": [asdict(each) | {"kept": each.is_kept} for each in cell.outcomes]}
            for cell in measured.cells
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", action="append", help="name or name:key=value,...")
    parser.add_argument("--loads", default="0.6,2.0", help="multiples of the rate of fcfs")
    parser.add_argument("--seeds", type=positive, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--first-runs", type=positive, default=10, help="of each pipeline")
    parser.add_argument("--backlog", type=positive, default=24, help="runs for the capacity")
    parser.add_argument("--factors", type=float, nargs=2, default=[2.0, 6.0], metavar="FACTOR")
    parser.add_argument("--warmup-s", type=float, default=10.0)
    parser.add_argument("--window-s", type=float, default=50.0)
    parser.add_argument("--model", help="default: that of the settings")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
