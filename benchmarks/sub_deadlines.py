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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from blake3 import blake3

from benchmarks.command import exit_code, print_result
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
from cli.work.bench_request import policy_of
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import summarise
from serving.sim.programs.call_slos import MIN_REMAINING_S, Predictions
from serving.sim.programs.predictions import ORACLE_FUTURES, FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, Stage, StageCall
from serving.sim.workloads.workloads import WORKLOADS
from serving.slo import Slo, SloKind

FIRST_SEED = 10
TOOL_FACTOR = 10.0
LONG_TOOLS = ", long tools"
NONE, EVEN, SHARES = "none", "even", "shares"
SUB_DEADLINES = (NONE, EVEN, SHARES)
BIASES: Mapping[str, float | None] = {"noisy": 1.0, "halved": 0.5, "doubled": 2.0, "missing": None}
"""What is predicted of a program's future -> factor on it; None: nothing."""

COMPOUND_WORKLOADS = (
    *("mixed", "agentic", "tools", "chat", "long_answers", "heavy_tails", "half_promised"),
    f"agentic{LONG_TOOLS}",
)
_CODE = blake3(Path(__file__).read_bytes()).hexdigest(16)


@dataclass(frozen=True, slots=True)
class DividedPredictions:
    """Predictions with another division of each program's deadline: a Predictor."""

    predictions: Predictions
    sub_deadlines: str

    @property
    def max_tokens(self) -> int:
        """The limit of every call."""
        return self.predictions.max_tokens

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of one call."""
        slo = self.predictions.slo_of(program, call, now_s)
        if program.kind is not SloKind.COMPOUND or slo.final_s is None:
            return slo
        share = self._share(program, call.stage)
        return replace(slo, deadline_s=max(slo.final_s * share, MIN_REMAINING_S))

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Nothing is learned."""

    def _share(self, program: Program, stage: int) -> float:
        """The share of the time left that a stage gets."""
        if self.sub_deadlines == NONE:
            return 1.0
        if self.sub_deadlines == EVEN:
            return 1.0 / (len(program.stages) - stage)
        token_s, prefill_token_s = self.predictions.token_s, self.predictions.prefill_token_s
        own_s = max(
            call.prompt_tokens * prefill_token_s + call.output_tokens * token_s
            for call in program.stages[stage].calls
        )
        later = ORACLE_FUTURES.future(
            program, stage, token_s=token_s, prefill_token_s=prefill_token_s
        )
        return own_s / (own_s + later.critical_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedExperiment:
    """One policy on one seed's programs, with one kind of sub-deadlines and of futures.

    Attributes:
        future: one of BIASES.
        tool_factor: on the seconds of every tool; deadlines are longer by the seconds added.
    """

    config: ExperimentConfig
    policy: PolicySpec
    load: float
    rate_per_s: float
    seed: int
    sub_deadlines: str
    future: str
    tool_factor: float
    kind: str = field(default="divided", init=False)

    @property
    def weight(self) -> float:
        """The machine's time that its programs take."""
        return self.config.machine_seconds_at(self.load)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the package's code; JSON-safe."""
        return self.config.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "sub_deadlines": self.sub_deadlines,
            "future": self.future,
            "tool_factor": self.tool_factor,
            "benchmark": _CODE,
        }

    def run(self) -> dict[str, Any]:
        """Token and request goodput, per second of the window."""
        load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        programs = [with_tools(program, self.tool_factor) for program in load.programs]
        added_s = max(
            (new.deadline_s or 0.0) - (old.deadline_s or 0.0)
            for new, old in zip(programs, load.programs, strict=True)
        )
        decided_s = load.decided_s + added_s
        bias = BIASES[self.future]
        predictions = replace(
            self.config.no_predictions,
            lengths=LengthErrors(seed=self.seed),
            futures=None if bias is None else FutureErrors(bias=bias, seed=self.seed),
        )
        clock = VirtualTime()
        replayed = replay(
            programs,
            virtual_engine(self.config, self.policy, programs, clock),
            clock,
            self.config.step_time(clock, seed=self.seed),
            predictor=DividedPredictions(predictions, self.sub_deadlines),
            until_s=decided_s,
        )
        report = summarise(replayed.programs, window_s=load.window_s, observed_until_s=decided_s)
        return dict(report.goodputs)


def with_tools(program: Program, factor: float) -> Program:
    """A program with tools that take longer, and a deadline that is later by as many seconds."""
    if factor == 1.0 or program.deadline_s is None:
        return program
    stages = tuple(Stage(stage.calls, stage.tool_s * factor) for stage in program.stages)
    added_s = program.tool_s * (factor - 1.0)
    return replace(program, stages=stages, deadline_s=program.deadline_s + added_s)


class Cell(NamedTuple):
    """The parameters of one row."""

    policy: str
    future: str
    workload: str
    load: float
    sub_deadlines: str


Goodputs = Mapping[Cell, tuple[float, float]]
"""Tokens and requests a second, averaged over the seeds."""


def measured(arguments: argparse.Namespace, running: Session) -> Goodputs:
    """The goodput of every cell."""
    cells: list[Cell] = []
    tasks: list[DividedExperiment] = []
    for workload in arguments.workload or COMPOUND_WORKLOADS:
        config = config_of(arguments, workload.removesuffix(LONG_TOOLS))
        capacity = running.capacity(config)
        for policy, future in _policies_and_futures(arguments.policy, arguments.future):
            for load, sub_deadlines in product(loads(arguments), SUB_DEADLINES):
                cells.append(Cell(label_of(policy), future, workload, load, sub_deadlines))
                tasks += [
                    DividedExperiment(
                        config=config,
                        policy=policy,
                        load=load,
                        rate_per_s=load * capacity,
                        seed=arguments.first_seed + seed,
                        sub_deadlines=sub_deadlines,
                        future=future,
                        tool_factor=TOOL_FACTOR if workload.endswith(LONG_TOOLS) else 1.0,
                    )
                    for seed in range(arguments.seeds)
                ]
    results = running.run("sub-deadlines", tasks)
    goodputs = {}
    for index, cell in enumerate(cells):
        own = results[index * arguments.seeds : (index + 1) * arguments.seeds]
        tokens, requests = (fmean(each[name] for each in own) for name in ("tokens", "requests"))
        goodputs[cell] = tokens, requests
    return goodputs


def _policies_and_futures(
    written: Sequence[str], futures: Sequence[str] | None
) -> list[tuple[PolicySpec, str]]:
    """Each policy with each kind of future; with the first one only if it reads no futures."""
    pairs = []
    for policy in map(policy_of, written):
        reads_futures = policy.name == "calm" or policy.is_own
        pairs += [
            (policy, future) for future in (futures or BIASES if reads_futures else ["noisy"])
        ]
    return pairs


class Row(NamedTuple):
    """Goodput with one kind of sub-deadlines / without, tokens and requests."""

    cell: Cell
    goodput: tuple[float, float]
    to_none: tuple[float | None, float | None]


def rows_of(goodputs: Goodputs) -> list[Row]:
    """The cells in proportion to those without sub-deadlines."""
    rows = []
    for cell, goodput in goodputs.items():
        without = goodputs[cell._replace(sub_deadlines=NONE)]
        tokens, requests = (ratio(*pair) for pair in zip(goodput, without, strict=True))
        rows.append(Row(cell, goodput, (tokens, requests)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """One line for each policy, future, load and workload; the geometric means below."""
    lines = [
        "simulated goodput with sub-deadlines / without: tokens, requests",
        f"{'policy':14}{'future':9}{'load':>5}  {'workload':22}{'tokens/s':>9}{'req/s':>8}"
        f"{'even':>13}{'shares':>13}",
    ]
    by_cell = {row.cell: row for row in rows}
    groups: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in by_cell:
        if cell.sub_deadlines == NONE:
            groups.setdefault((cell.policy, cell.future, cell.load), []).append(cell)
    for (policy, future, load), cells in groups.items():
        for cell in cells:
            tokens, requests = by_cell[cell].goodput
            ratios = (by_cell[cell._replace(sub_deadlines=kind)].to_none for kind in (EVEN, SHARES))
            shown = "".join(f"{'/'.join(map(format_ratio, pair)):>13}" for pair in ratios)
            lines.append(
                f"{policy:14}{future:9}{load:5g}  {cell.workload:22}{tokens:9,.0f}{requests:8.2f}"
                + shown
            )
        means = "".join(
            f"{'/'.join(map(format_ratio, _means(by_cell, cells, kind))):>13}"
            for kind in (EVEN, SHARES)
        )
        lines.append(f"{policy:14}{future:9}{load:5g}  {'geometric mean':39}{means}")
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
    """Simulate and print."""
    with session(arguments.jobs) as running:
        rows = rows_of(measured(arguments, running))
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
    known = [*WORKLOADS, *(f"{name}{LONG_TOOLS}" for name in WORKLOADS)]
    parser.add_argument("--workload", action="append", choices=known, metavar="NAME")
    parser.add_argument("--policy", nargs="+", default=["edf", "lsdf", "calm"], metavar="NAME")
    parser.add_argument("--future", nargs="+", choices=BIASES, help="default: all")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
