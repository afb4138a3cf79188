"""The effect of a user who floods the engine on other users, with and without fairness.

    python -m benchmarks.fairness [--policy edf ...] [--flood strict ...] [--fairness 0 0.5]
        [--loads 0.7] [--seeds 3] [--window-s 120] [--jobs 2] [--json]

In virtual time: the `mixed` workload, spread over ten users, and one more user with about twice the
load that the whole machine can serve. The printed numbers are the simulated goodput of the ten
users / their goodput under the same policy without a flood and without fairness.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from blake3 import blake3

from benchmarks import floods
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
from benchmarks.floods import FLOODER, FLOODS, NO_FLOOD, load_with_flood
from cli.errors import BadInput
from cli.work.bench_request import policy_of
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import summarise

WARMUP_S, WINDOW_S = 30.0, 120.0

_CODE = blake3(b"".join(map(Path.read_bytes, (Path(__file__), Path(floods.__file__)))))
"""Digest of the code at the start; the files may change during a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodExperiment:
    """One policy on the load of the ten users and of the flooding user, in virtual time.

    Attributes:
        rate_per_s: programs per second of the ten users together.
        flood: one of FLOODS, or NO_FLOOD.
    """

    config: ExperimentConfig
    policy: PolicySpec
    rate_per_s: float
    seed: int
    flood: str
    kind: str = field(default="flood", init=False)

    @property
    def weight(self) -> float:
        """Proportional to the number of programs."""
        flood_per_s = FLOODS[self.flood].rate_per_s if self.flood != NO_FLOOD else 0.0
        return self.config.programs_at(self.rate_per_s + flood_per_s)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the package's code; JSON-safe."""
        return self.config.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "flood": self.flood,
            "benchmark": _CODE.hexdigest(16),
        }

    def run(self) -> dict[str, Any]:
        """Goodput per second: tokens and requests of the ten users, tokens of the one of them with
        the least, and tokens of the flooding user."""
        clock = VirtualTime()
        load = load_with_flood(self.config, self.flood, self.rate_per_s, self.seed)
        replayed = replay(
            load.programs,
            virtual_engine(self.config, self.policy, load.programs, clock),
            clock,
            self.config.step_time(clock, seed=self.seed),
            predictor=self.config.predictions_of(self.seed),
            until_s=load.decided_s,
        )
        others, flooder = (
            summarise(
                [each for each in replayed.programs if (each.user == FLOODER) is is_flooder],
                window_s=load.window_s,
                observed_until_s=load.decided_s,
            )
            for is_flooder in (False, True)
        )
        return {
            "tokens": others.goodputs["tokens"],
            "requests": others.goodputs["requests"],
            "least_user_tokens": min(others.user_goodput.values(), default=0.0),
            "flooder_tokens": flooder.goodputs["tokens"],
        }


Documents = Sequence[Mapping[str, Any]]
"""Results of one cell, one per seed."""


class Cell(NamedTuple):
    """The parameters of one row."""

    policy: str
    load: float
    fairness: float
    flood: str

    @property
    def baseline(self) -> Cell:
        """The same without a flood and without fairness."""
        return self._replace(fairness=0.0, flood=NO_FLOOD)


class Row(NamedTuple):
    """Goodput of the ten users under one policy and one flood, averaged over the seeds.

    Attributes:
        token_share, request_share, least_user_share: goodput of the ten, and of the one with the
            least, / their goodput in the baseline cell; None if that is 0.
        flooder_tokens_s: goodput of the flooding user.
    """

    policy: str
    load: float
    fairness: float
    flood: str
    token_share: float | None
    request_share: float | None
    least_user_share: float | None
    flooder_tokens_s: float

    @classmethod
    def of(cls, cell: Cell, results: Documents, baseline: Documents) -> Row:
        """A row from the results of its cell and of the baseline cell."""
        shares = [
            ratio(_mean(results, name), _mean(baseline, name))
            for name in ("tokens", "requests", "least_user_tokens")
        ]
        return cls(*cell, *shares, _mean(results, "flooder_tokens"))


def _mean(documents: Documents, name: str) -> float:
    return fmean(each[name] for each in documents)


Results = Mapping[Cell, Documents]


def run_cells(arguments: argparse.Namespace, running: Session) -> tuple[list[Row], Results]:
    """Run all cells and their baselines; returns the rows, and the results behind them."""
    policies = [policy_of(each) for each in arguments.policy or ["edf", "calm"]]
    by_label = {label_of(each): each for each in policies}
    cells = [
        Cell(*each)
        for each in product(
            by_label,
            loads(arguments),
            dict.fromkeys(arguments.fairness),
            (NO_FLOOD, *dict.fromkeys(arguments.flood or FLOODS)),
        )
    ]
    specs = {
        each: with_fairness(by_label[each.policy], each.fairness)
        for cell in cells
        for each in (cell.baseline, cell)
    }
    config = config_of(arguments)
    capacity_per_s = running.capacity(config)
    tasks = [
        FloodExperiment(
            config=config,
            policy=spec,
            rate_per_s=cell.load * capacity_per_s,
            seed=seed,
            flood=cell.flood,
        )
        for cell, spec in specs.items()
        for seed in range(arguments.seeds)
    ]
    documents = iter(running.run("floods", tasks))
    results = {cell: [next(documents) for _ in range(arguments.seeds)] for cell in specs}
    return [Row.of(cell, results[cell], results[cell.baseline]) for cell in cells], results


def with_fairness(policy: PolicySpec, fairness: float) -> PolicySpec:
    """The policy with this fairness; raises BadInput if its parameters contain fairness already."""
    if "fairness" in policy.params:
        raise BadInput(f"--policy {label_of(policy)}: set its fairness with --fairness")
    return replace(policy, params={**policy.params, "fairness": fairness})


def table(rows: Sequence[Row]) -> str:
    """The rows as a text table."""
    width = max(16, *(len(row.policy) for row in rows))
    lines = [
        "simulated goodput of the others; 1: without a flood and without fairness",
        f"{'policy':{width}} {'load':>5} {'fair':>5}  {'flood':14}"
        f"{'tokens':>7}{'requests':>9}{'least user':>11}{'flooder, tokens/s':>18}",
    ]
    lines += [
        f"{row.policy:{width}} {row.load:5g} {row.fairness:5g}  {row.flood:14}"
        f"{format_ratio(row.token_share):>7}{format_ratio(row.request_share):>9}"
        f"{format_ratio(row.least_user_share):>11}{row.flooder_tokens_s:18,.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    with session(arguments.jobs) as running:
        rows, results = run_cells(arguments, running)
    result = document(
        arguments,
        rows=[row._asdict() for row in rows],
        runs=[cell._asdict() | {"seeds": documents} for cell, documents in results.items()],
    )
    print_result(result, table(rows), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="0.7")
    parser.set_defaults(window_s=WINDOW_S, warmup_s=WARMUP_S)
    parser.add_argument("--policy", action="append", help="repeatable; default: edf and calm")
    parser.add_argument("--flood", action="append", choices=FLOODS, help="default: all")
    parser.add_argument("--fairness", nargs="+", type=float, default=[0.0, 0.5])
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
