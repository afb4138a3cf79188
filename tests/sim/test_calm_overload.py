"""calm where four times too much arrives: it keeps what the machine can, and starves nobody."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.metrics.goodput import ProgramOutcome
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from tests.sim.one_engine import outcomes

pytestmark = pytest.mark.usefixtures("imported_vllm")

RATE_PER_S, DEADLINE_S, UNTIL_S = 20.0, 10.0, 120.0


def overloaded(policy: str) -> list[ProgramOutcome]:
    """Long prompts with short answers, of which the machine can do about four a second."""
    pressed = [
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
    return outcomes([*pressed, patient], PolicySpec(policy), UNTIL_S)


def kept(programs: list[ProgramOutcome]) -> int:
    return sum(each.e2el_s is not None and each.e2el_s <= DEADLINE_S for each in programs)


def test_late_work_does_not_stand_in_the_way_and_best_effort_work_ends() -> None:
    ours, by_deadline = overloaded("calm"), overloaded("edf")
    assert kept(ours) > 0.7 * 5.0 * (UNTIL_S - DEADLINE_S)
    assert kept(ours) > kept(by_deadline)
    [patient] = [each for each in ours if each.program_id == "patient"]
    assert patient.ended_s is not None
