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
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from blake3 import blake3

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
from cli.bench_request import policy_of
from serving.policies.table import PolicySpec
from serving.sim.cases import virtual_engine
from serving.sim.compare import label_of
from serving.sim.driver import VirtualTime, replay
from serving.sim.metrics import summarise
from serving.sim.offer import Offer, fate_s
from serving.sim.programs import Call, Program, Stage
from serving.sim.setting import Setting
from serving.slo import SloKind

WARMUP_S, WINDOW_S = 30.0, 120.0

NUM_USERS = 10
FLOODER = "flooder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """One user's requests, at even distances.

    Attributes:
        deadline_s: promised end to end; None: a stream with `ttft_s` and `tbt_s`.
    """

    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    deadline_s: float | None = None
    ttft_s: float = 0.1
    tbt_s: float = 0.04
    weight: float = 1.0

    def programs(self, until_s: float) -> Iterator[Program]:
        """All of them, by arrival, before a moment."""
        kind = SloKind.LATENCY if self.deadline_s is None else SloKind.DEADLINE
        call = Call(self.prompt_tokens, self.output_tokens)
        for index in range(math.ceil(until_s * self.rate_per_s)):
            yield Program(
                id=f"{FLOODER}-{index}",
                application=FLOODER,
                kind=kind,
                arrival_s=index / self.rate_per_s,
                stages=(Stage((call,)),),
                ttft_s=self.ttft_s,
                tbt_s=self.tbt_s,
                deadline_s=self.deadline_s,
                user=FLOODER,
                weight=self.weight,
            )


FLOODS: Mapping[str, Flood] = {
    # Nobody could keep these; they are late within moments.
    "impossible": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500, deadline_s=0.1),
    # About twice what the call takes on a machine of its own.
    "strict": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500, deadline_s=12.0),
    "strict stream": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500),
    # Prefill alone takes twice the machine.
    "long prompts": Flood(rate_per_s=3.0, prompt_tokens=12_000, output_tokens=50, deadline_s=5.0),
    # Much goodput for few decode steps: what an order by density or by length likes best.
    "short answers": Flood(rate_per_s=15.0, prompt_tokens=2_500, output_tokens=4, deadline_s=5.0),
}


NO_FLOOD = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flooded:
    """One policy on the work of the ten users, and of the one who floods, in virtual time.

    Attributes:
        rate_per_s: programs of the ten a second.
        flood: one of FLOODS, or NO_FLOOD.
    """

    setting: Setting
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
        return self.setting.told_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "flood": self.flood,
            "benchmark": blake3(Path(__file__).read_bytes()).hexdigest(16),
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
            foresight=self.setting.foresight(self.seed),
            until_s=offered.decided_s,
        )
        others, flooder = (
            summarise(
                [each for each in replayed.programs if (each.user == FLOODER) is floods],
                window_s=offered.window_s,
                observed_until_s=offered.decided_s,
            )
            for floods in (False, True)
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


def offered_to(setting: Setting, flood: str, rate_per_s: float, seed: int) -> Offer:
    """The workload of the ten users, who take turns, and the flooder's beside it.

    Both go on until every counted program of either kept its promise or broke it.
    """
    found = setting.offer(rate_per_s=rate_per_s, seed=seed)
    programs = [
        replace(program, user=f"user-{index % NUM_USERS}")
        for index, program in enumerate(found.programs)
    ]
    if flood == NO_FLOOD:
        return found._replace(programs=tuple(programs))
    flooding = list(FLOODS[flood].programs(found.decided_s))
    from_s, to_s = found.window_s
    fates_s = [fate_s(each) for each in flooding if from_s <= each.arrival_s < to_s]
    assert max(fates_s) <= found.decided_s, "the flooder is promised less time than the others"
    programs += flooding
    programs.sort(key=lambda program: (program.arrival_s, program.id))
    return found._replace(programs=tuple(programs))


def measured(chosen: argparse.Namespace, running: Session) -> Iterator[Row]:
    """What each policy leaves the others, flood by flood."""
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
    specs = {cell: with_fairness(named[cell.policy], cell.fairness) for cell in cells}
    specs |= {cell.alone: with_fairness(named[cell.policy], 0.0) for cell in cells}
    setting = setting_of(chosen)
    capacity_per_s = running.capacity(setting)
    tasks = {
        (cell, seed): Flooded(
            setting=setting,
            policy=spec,
            rate_per_s=cell.load * capacity_per_s,
            seed=seed,
            flood=cell.flood,
        )
        for cell, spec in specs.items()
        for seed in range(chosen.seeds)
    }
    results = dict(zip(tasks, running.run("floods", list(tasks.values())), strict=True))

    def of(cell: Cell) -> Documents:
        return [results[cell, seed] for seed in range(chosen.seeds)]

    return (Row.of(cell, of(cell), of(cell.alone)) for cell in cells)


def with_fairness(policy: PolicySpec, fairness: float) -> PolicySpec:
    """The same policy, with so much of it."""
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
        rows = list(measured(chosen, running))
    if chosen.json:
        document = {
            "simulated": True,
            "window_s": chosen.window_s,
            "seeds": chosen.seeds,
            "rows": [row._asdict() for row in rows],
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
