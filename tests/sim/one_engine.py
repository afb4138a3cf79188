"""Runs programs on the production scheduler on a simulated A100."""

from __future__ import annotations

from collections.abc import Iterable

from serving.goodput import ProgramOutcome
from serving.policies.table import PolicySpec
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from serving.step_cost import MACHINES

MACHINE = MACHINES["a100-llama3-8b"]


def program(name: str, arrival_s: float, call: Call, **slo: object) -> Program:
    """A program of one call."""
    stages = (Stage((call,)),)
    return Program(id=name, application="", arrival_s=arrival_s, stages=stages, **slo)  # type: ignore[arg-type]


FIRST = program("first", 0.0, Call(50, 3), kind=SloKind.DEADLINE, deadline_s=9.0)
"""Starts the engine long before the programs that a test looks at."""


def outcomes(
    programs: Iterable[Program], policy: PolicySpec, until_s: float
) -> list[ProgramOutcome]:
    """The outcomes of programs, given in any order, observed until until_s."""
    from serving.sim.drive.virtual_engine import (  # vLLM warns while it loads
        VirtualConfig,
        VirtualEngine,
    )

    clock = VirtualTime()
    config = VirtualConfig(policy=policy, kv_blocks=MACHINE.kv_blocks)
    run = replay(
        sorted(programs, key=lambda program: program.arrival_s),
        VirtualEngine(config, clock),
        clock,
        MACHINE.step_cost,
        predictor=Predictions(lengths=LengthErrors(), futures=FutureErrors()),
        until_s=until_s,
    )
    return list(run.programs)
