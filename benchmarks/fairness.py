"""What a user who floods the engine costs the others, with fairness and without.

    python -m benchmarks.fairness [--policy edf ...] [--flood strict ...] [--fairness 0 0.5]
        [--loads 0.7] [--seeds 3] [--window-s 120] [--jobs 2] [--json]

In virtual time: the `mixed` workload, spread over ten users, and one more user who asks for about
twice what the whole machine can do. Printed is the simulated goodput of the ten, as a share of
what the same policy earns them when nobody floods and fairness is off.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks.comparing import (
    Session,
    exit_code,
    loads,
    options,
    ratio,
    session,
    setting_of,
    shown,
)
from benchmarks.floods import FLOODER, FLOODS, NO_FLOOD, offered_to
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
"""As it is run, whatever becomes of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flooded:
    """One policy on the work of the ten users, and of the one who floods, in virtual time.

    Attributes:
        rate_per_s: programs of the ten a second.
        flood: one of FLOODS, or NO_FLOOD.
    """

    setting: ExperimentConfig
    policy: PolicySpec
    rate_per_s: float
    seed: int
    flood: str
    sort: str = field(default="flood", init=False)

    @property
    def weight(self) -> float:
        """Proportional to how many programs there are."""
        flooding = FLOODS[self.flood].rate_per_s if self.flood != NO_FLOOD else 0.0
        return self.setting.programs_at(self.rate_per_s + flooding)

    def key(self) -> dict[str, Any]:
        """All that its result depends on but for the package's code; JSON-safe."""
        return self.setting.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "flood": self.flood,
            "benchmark": _CODE.hexdigest(16),
        }

    def run(self) -> dict[str, Any]:
        """Goodput a second: tokens and requests of the ten, tokens of the least served of them,
        and of the one who floods."""
        clock = VirtualTime()
        offered = offered_to(self.setting, self.flood, self.rate_per_s, self.seed)
        replayed = replay(
            offered.programs,
            virtual_engine(self.setting, self.policy, offered.programs, clock),
            clock,
            self.setting.costing(clock, seed=self.seed),
            predictions=self.setting.predictions_of(self.seed),
            until_s=offered.decided_s,
        )
        others, flooder = (
            summarise(
                [each for each in replayed.programs if (each.user == FLOODER) is flooding],
                window_s=offered.window_s,
                observed_until_s=offered.decided_s,
            )
            for flooding in (False, True)
        )
        return {
            "tokens": others.goodputs["tokens"],
            "requests": others.goodputs["requests"],
            "least_user_tokens": min(others.user_goodput.values(), default=0.0),
            "flooder_tokens": flooder.goodputs["tokens"],
        }


Documents = Sequence[Mapping[str, Any]]
"""Results of one cell, one for each seed."""


class Cell(NamedTuple):
    """What one row is of."""

    policy: str
    load: float
    fairness: float
    flood: str

    @property
    def alone(self) -> Cell:
        """The same without a flood and without fairness."""
        return self._replace(fairness=0.0, flood=NO_FLOOD)


class Row(NamedTuple):
    """What one flood leaves the ten under one policy, averaged over the seeds.

    Attributes:
        token_share, request_share, least_user_share: of what the same policy earns them, and the
            least served of them, without a flood and without fairness; None where that is nothing.
        flooder_tokens_s: goodput of the one who floods.
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
    def of(cls, cell: Cell, found: Documents, alone: Documents) -> Row:
        """From the results of one cell, and of that without a flood and without fairness."""
        shares = [
            ratio(_mean(found, name), _mean(alone, name))
            for name in ("tokens", "requests", "least_user_tokens")
        ]
        return cls(*cell, *shares, _mean(found, "flooder_tokens"))


def _mean(documents: Documents, name: str) -> float:
    return fmean(each[name] for each in documents)


Results = Mapping[Cell, Documents]


def measured(chosen: argparse.Namespace, running: Session) -> tuple[list[Row], Results]:
    """What each policy leaves the others, flood by flood, and what it is made of."""
    named = {label_of(each): each for each in map(policy_of, chosen.policy or ["edf", "calm"])}
    cells = [
        Cell(*each)
        for each in product(
            named,
            loads(chosen),
            dict.fromkeys(chosen.fairness),
            (NO_FLOOD, *dict.fromkeys(chosen.flood or FLOODS)),
        )
    ]
    specs = {
        each: with_fairness(named[each.policy], each.fairness)
        for cell in cells
        for each in (cell.alone, cell)
    }
    setting = setting_of(chosen)
    capacity_per_s = running.capacity(setting)
    tasks = [
        Flooded(
            setting=setting,
            policy=spec,
            rate_per_s=cell.load * capacity_per_s,
            seed=seed,
            flood=cell.flood,
        )
        for cell, spec in specs.items()
        for seed in range(chosen.seeds)
    ]
    done = iter(running.run("floods", tasks))
    results = {cell: [next(done) for _ in range(chosen.seeds)] for cell in specs}
    return [Row.of(cell, results[cell], results[cell.alone]) for cell in cells], results


def with_fairness(policy: PolicySpec, fairness: float) -> PolicySpec:
    """The same policy, with so much of it; raises BadInput where it asks for some itself."""
    if "fairness" in policy.params:
        raise BadInput(f"--policy {label_of(policy)}: give its fairness by --fairness")
    return replace(policy, params={**policy.params, "fairness": fairness})


def table(rows: Sequence[Row]) -> str:
    """For people."""
    width = max(16, *(len(row.policy) for row in rows))
    lines = [
        "simulated goodput of the others; 1: nobody floods and fairness is off",
        f"{'policy':{width}} {'load':>5} {'fair':>5}  {'flood':14}"
        f"{'tokens':>7}{'requests':>9}{'least user':>11}{'flooder, tokens/s':>18}",
    ]
    lines += [
        f"{row.policy:{width}} {row.load:5g} {row.fairness:5g}  {row.flood:14}"
        f"{shown(row.token_share):>7}{shown(row.request_share):>9}"
        f"{shown(row.least_user_share):>11}{row.flooder_tokens_s:18,.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def simulate(chosen: argparse.Namespace) -> None:
    """Simulate and print."""
    with session(chosen.jobs) as running:
        rows, results = measured(chosen, running)
    if chosen.json:
        document = {
            "simulated": True,
            "window_s": chosen.window_s,
            "seeds": chosen.seeds,
            "rows": [row._asdict() for row in rows],
            "runs": [cell._asdict() | {"seeds": found} for cell, found in results.items()],
        }
        print(json.dumps(document))
    else:
        print(table(rows))


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    parser = options(__doc__ or "", loads="0.7")
    parser.set_defaults(window_s=WINDOW_S, warmup_s=WARMUP_S)
    parser.add_argument("--policy", action="append", help="repeatable; default: edf and calm")
    parser.add_argument("--flood", action="append", choices=FLOODS, help="default: all")
    parser.add_argument("--fairness", nargs="+", type=float, default=[0.0, 0.5])
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
