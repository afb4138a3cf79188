"""Loads of ten users who share a workload, and of one more user who floods the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import GeneratedLoad, outcome_known_s
from serving.slo import SloKind

NUM_USERS = 10
FLOODER = "flooder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """The requests of one user, at regular intervals.

    Attributes:
        deadline_s: end to end; None: a stream with `ttft_s` and `tbt_s`.
    """

    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    deadline_s: float | None = None
    ttft_s: float = 0.1
    tbt_s: float = 0.04
    weight: float = 1.0

    def programs(self, until_s: float) -> Iterator[Program]:
        """All requests that arrive before until_s, by arrival."""
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
    # Infeasible: these deadlines pass before any engine could answer.
    "impossible": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500, deadline_s=0.1),
    # About twice the latency on an idle machine.
    "strict": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500, deadline_s=12.0),
    "strict stream": Flood(rate_per_s=10.0, prompt_tokens=500, output_tokens=500),
    # The prefills alone are twice the machine's capacity.
    "long prompts": Flood(rate_per_s=3.0, prompt_tokens=12_000, output_tokens=50, deadline_s=5.0),
    # Much goodput for few decode steps: an order by value density or by length serves these first.
    "short answers": Flood(rate_per_s=15.0, prompt_tokens=2_500, output_tokens=4, deadline_s=5.0),
}


NO_FLOOD = "none"


def load_with_flood(
    config: ExperimentConfig, flood: str, rate_per_s: float, seed: int
) -> GeneratedLoad:
    """The workload of the ten users, who take turns, and the flooding user's requests.

    Both arrive until every counted program has met or missed its SLO.
    """
    load = config.generate_load(rate_per_s=rate_per_s, seed=seed)
    programs = [
        replace(program, user=f"user-{index % NUM_USERS}")
        for index, program in enumerate(load.programs)
    ]
    if flood == NO_FLOOD:
        return load._replace(programs=tuple(programs))
    flood_programs = list(FLOODS[flood].programs(load.decided_s))
    from_s, to_s = load.window_s
    decided_s = [
        outcome_known_s(each) for each in flood_programs if from_s <= each.arrival_s < to_s
    ]
    assert max(decided_s) <= load.decided_s, "a flood's deadlines are the shorter ones"
    programs += flood_programs
    programs.sort(key=lambda program: (program.arrival_s, program.id))
    return load._replace(programs=tuple(programs))
