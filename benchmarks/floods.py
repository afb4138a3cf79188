"""Ten users who share a workload, and one more who floods the engine."""

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


def offered_to(
    setting: ExperimentConfig, flood: str, rate_per_s: float, seed: int
) -> GeneratedLoad:
    """The workload of the ten users, who take turns, and the flooder's beside it.

    Both go on until every counted program of either kept its promise or broke it.
    """
    found = setting.generated_load(rate_per_s=rate_per_s, seed=seed)
    programs = [
        replace(program, user=f"user-{index % NUM_USERS}")
        for index, program in enumerate(found.programs)
    ]
    if flood == NO_FLOOD:
        return found._replace(programs=tuple(programs))
    flooding = list(FLOODS[flood].programs(found.decided_s))
    from_s, to_s = found.window_s
    fates_s = [outcome_known_s(each) for each in flooding if from_s <= each.arrival_s < to_s]
    assert max(fates_s) <= found.decided_s, "the flooder is promised less time than the others"
    programs += flooding
    programs.sort(key=lambda program: (program.arrival_s, program.id))
    return found._replace(programs=tuple(programs))
