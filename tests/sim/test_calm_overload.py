"""calm at four times the machine's capacity: high goodput, and best-effort work still ends."""

from __future__ import annotations

import pytest

from serving.goodput import ProgramOutcome
from serving.policies.table import PolicySpec
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from tests.sim.one_engine import outcomes

pytestmark = pytest.mark.usefixtures("imported_vllm")

RATE_PER_S, DEADLINE_S, UNTIL_S = 20.0, 10.0, 120.0


def overloaded(policy: str) -> list[ProgramOutcome]:
    """Long prompts with short answers, at about four times the machine's capacity."""
    urgent = [
        Program(
            id=f"pressed-{index}",
            application="pressed",
            kind=SloKind.DEADLINE,
            arrival_s=index / RATE_PER_S,
            stages=(Stage((Call(3000 + index * 37 % 500, 40),)),),
            deadline_s=DEADLINE_S,
        )
        for index in range(int(UNTIL_S * RATE_PER_S))
    ]
    patient = Program(
        id="patient",
        application="patient",
        kind=SloKind.BEST_EFFORT,
        arrival_s=5.01,
        stages=(Stage((Call(2000, 50),)),),
    )
    return outcomes([*urgent, patient], PolicySpec(policy), UNTIL_S)


def num_in_time(programs: list[ProgramOutcome]) -> int:
    return sum(each.e2el_s is not None and each.e2el_s <= DEADLINE_S for each in programs)


def test_late_work_does_not_delay_feasible_work_and_best_effort_work_ends() -> None:
    calm, edf = overloaded("calm"), overloaded("edf")
    assert num_in_time(calm) > 0.7 * 5.0 * (UNTIL_S - DEADLINE_S)
    assert num_in_time(calm) > num_in_time(edf)
    [patient] = [each for each in calm if each.program_id == "patient"]
    assert patient.ended_s is not None
