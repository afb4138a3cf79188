"""What a user who floods the engine costs the others, with fairness and without.

    python benchmarks/fairness.py [--policy edf ...] [--flood strict ...] [--fairness 0 0.5]
        [--load 0.7] [--seed 0] [--json]

In virtual time: the `mixed` workload, spread over ten users, and one more user who asks for about
twice what the whole machine can do. Printed is the simulated goodput of the ten, as a share of
what the same policy earns them when nobody floods and fairness is off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.comparing import exit_code, ratio, shown
from serving.policies.table import POLICIES, PolicySpec
from serving.sim.driver import VirtualTime, replay
from serving.sim.metrics import Report, summarise
from serving.sim.offer import Offer, Source, fate_s, offer
from serving.sim.predictions import FutureErrors, LengthErrors
from serving.sim.programs import Call, Program, Stage
from serving.sim.promises import Foresight
from serving.sim.step_cost import MACHINES
from serving.slo import SloKind

WARMUP_S, WINDOW_S = 30.0, 120.0

CAPACITY_PER_S = 2.01
"""Programs of `mixed` that fcfs completes a second on the machine below: load 1."""

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


@dataclass(frozen=True, slots=True)
class Others:
    """Simulated goodput of all users but the flooder, a second."""

    tokens: float
    requests: float
    least_user_tokens: float
    flooder_tokens: float

    @classmethod
    def of(cls, report: Report, flooder: Report) -> Others:
        """From what the ten were worth, and the one."""
        return cls(
            tokens=report.goodputs["tokens"],
            requests=report.goodputs["requests"],
            least_user_tokens=min(report.user_goodput.values(), default=0.0),
            flooder_tokens=flooder.goodputs["tokens"],
        )


@cache
def simulated(policy: str, fairness: float, flood: str | None, load: float, seed: int) -> Others:
    """One run in virtual time."""
    from serving.engine.virtual import VirtualConfig, VirtualEngine

    machine, clock = MACHINES["a100-llama3-8b"], VirtualTime()
    programs, window_s, decided_s, _ = offered(flood, load, seed)
    spec = PolicySpec(policy, {"fairness": fairness})
    engine = VirtualEngine(VirtualConfig(policy=spec, kv_blocks=machine.kv_blocks), clock)
    foresight = Foresight(lengths=LengthErrors(seed=seed), futures=FutureErrors(seed=seed))
    run = replay(
        programs,
        engine,
        clock,
        machine.step_cost,
        foresight=foresight,
        until_s=decided_s,
    )
    reports = [
        summarise(
            [each for each in run.programs if (each.user == FLOODER) is floods],
            window_s=window_s,
            observed_until_s=decided_s,
        )
        for floods in (False, True)
    ]
    return Others.of(*reports)


def offered(flood: str | None, load: float, seed: int) -> Offer:
    """The workload of the ten users, who take turns, and the flooder's beside it.

    Both go on until every counted program of either kept its promise or broke it.
    """
    found = offer(
        Source.generator("mixed"),
        rate_per_s=load * CAPACITY_PER_S,
        seed=seed,
        warmup_s=WARMUP_S,
        window_s=WINDOW_S,
    )
    programs = [
        replace(program, user=f"user-{index % NUM_USERS}")
        for index, program in enumerate(found.programs)
    ]
    if flood is None:
        return found._replace(programs=tuple(programs))
    flooding = list(FLOODS[flood].programs(found.decided_s))
    from_s, to_s = found.window_s
    fates_s = [fate_s(each) for each in flooding if from_s <= each.arrival_s < to_s]
    assert max(fates_s) <= found.decided_s, "the flooder is promised less time than the others"
    programs += flooding
    programs.sort(key=lambda program: (program.arrival_s, program.id))
    return found._replace(programs=tuple(programs))


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each policy leaves the others, flood by flood."""
    for policy in arguments.policy:
        for load in arguments.load:
            for seed in arguments.seed:
                alone = simulated(policy, 0.0, None, load, seed)
                for fairness in arguments.fairness:
                    for flood in (None, *arguments.flood):
                        others = simulated(policy, fairness, flood, load, seed)
                        yield {
                            "policy": policy,
                            "load": load,
                            "seed": seed,
                            "fairness": fairness,
                            "flood": flood or "none",
                            "token_share": ratio(others.tokens, alone.tokens),
                            "request_share": ratio(others.requests, alone.requests),
                            "least_user_share": ratio(
                                others.least_user_tokens, alone.least_user_tokens
                            ),
                            "flooder_tokens_s": others.flooder_tokens,
                        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description="What a flood by one user costs the others.")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=["edf", "calm"])
    parser.add_argument("--flood", nargs="+", choices=FLOODS, default=list(FLOODS))
    parser.add_argument("--fairness", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--load", nargs="+", type=float, default=[0.7])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--json", action="store_true")
    return exit_code(partial(_show, parser.parse_args(arguments)))


def _show(chosen: argparse.Namespace) -> None:
    if not chosen.json:
        print("Simulated goodput of the others, 1 = nobody floods and fairness is off")
        print(f"{'policy':15} load seed fair {'flood':14} tokens requests  flooder, tokens/s")
    for row in rows(chosen):
        if chosen.json:
            print(json.dumps({"simulated": True} | row), flush=True)
            continue
        print(
            f"{row['policy']:15} {row['load']:4} {row['seed']:4} {row['fairness']:4}"
            f" {row['flood']:14} {shown(row['token_share']):>6} {shown(row['request_share']):>8}"
            f" {row['flooder_tokens_s']:18.0f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
