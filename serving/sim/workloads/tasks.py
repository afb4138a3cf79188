"""What a workload is made of: types of programs with their lengths and SLOs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serving.sim.programs import lengths
from serving.sim.programs.lengths import LengthPair
from serving.sim.programs.programs import Call, Stage
from serving.slo import SloKind

TTFT_S = 2.0
TBT_S = 0.1
STAGE_DEADLINE_S = 20.0
"""SLOs of Wu (2025), section 6.1: a deadline program has 20 s, a compound one 20 s per stage."""

BACKLOG_PROGRAMS = 400
"""Programs of the backlog on which a workload's capacity is measured."""

Stages = Callable[[np.random.Generator], tuple[Stage, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One type of program in a workload.

    Attributes:
        share: how often it is drawn, relative to the workload's other tasks.
        stages: draws the program's stages.
        ttft_slowdown: if set, TTFT = ttft_slowdown * the seconds to prefill the prompt in one step
            on an idle machine of STEP_COSTS["a100-llama3-8b"]; else ttft_s.
        tbt_s: the TBT of its SLO.
        stage_deadline_s: the deadline of its SLO, for each of its stages.
        user: key for fairness.
        then_tbt_s: the TBT of the second part of the last answer, if its calls have `then_from`.
    """

    share: float
    application: str
    kind: SloKind
    stages: Stages
    ttft_slowdown: float | None = None
    ttft_s: float = TTFT_S
    tbt_s: float = TBT_S
    stage_deadline_s: float = STAGE_DEADLINE_S
    user: str = ""
    then_tbt_s: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks that are drawn independently by their shares.

    Attributes:
        source: what is taken from the paper, and what is assumed.
        max_tokens: the limit on every answer, as policies see it; longer answers are cut. The
            default cuts about one answer in a thousand (assumed: no table prints a limit).
        arrivals: one of ARRIVALS: how its programs arrive unless another process is asked for.
        backlog_programs: programs of the backlog on which its capacity is measured. Fewer than the
            default if so many growing contexts would evict each other from the prefix cache, which
            they do not at the rates that the machine can serve.
    """

    source: str
    tasks: tuple[Task, ...]
    max_tokens: int = lengths.DEFAULT_MAX_TOKENS
    arrivals: str = "poisson"
    backlog_programs: int = BACKLOG_PROGRAMS


def single(rng: np.random.Generator, *, pair: LengthPair) -> tuple[Stage, ...]:
    """One stage of one call."""
    return (Stage((Call(pair.prompt.sample(rng), pair.output.sample(rng)),)),)
