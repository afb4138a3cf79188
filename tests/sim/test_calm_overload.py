"""calm above the machine's capacity, lasting and sudden: high goodput, best-effort work ends."""

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


def agent(index: int, arrival_s: float) -> Program:
    """A plan, three notes and a report, due in 6 to 20 s."""
    notes = tuple(Call(600, 40 + (index + note) * 11 % 60) for note in range(3))
    return Program(
        id=f"agent-{index}",
        application="agent",
        kind=SloKind.COMPOUND,
        arrival_s=arrival_s,
        stages=(
            Stage((Call(300, 20 + index * 7 % 30),)),
            Stage(notes),
            Stage((Call(900, 100 + index * 17 % 200),)),
        ),
        deadline_s=6.0 + 1.4 * (index * 13 % 10),
    )


@pytest.mark.parametrize(("rate_per_s", "gain"), [(4, 1.0), (5, 1.5)], ids=["by 1.3", "by 1.7"])
def test_sudden_overload_after_a_quiet_minute_costs_no_more_than_order_by_deadline(
    rate_per_s: int, gain: float
) -> None:
    """The rate of the last minute says that short steps are free; what is present says no."""
    quiet = [agent(index, float(index)) for index in range(10)]
    rush = [agent(10 + n, 60.0 + n / rate_per_s) for n in range(20 * rate_per_s)]
    in_time = {}
    for policy in ("calm", "edf"):
        results = outcomes([*quiet, *rush], PolicySpec(policy), 120.0)
        deadlines_s = {each.id: each.deadline_s for each in rush}
        in_time[policy] = sum(
            each.e2el_s is not None and each.e2el_s <= (deadlines_s.get(each.program_id) or 0.0)
            for each in results
        )
    assert in_time["calm"] >= gain * in_time["edf"] > 0
