"""calm on a machine with time to spare, where prompts that came at once fill its steps."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.metrics.goodput import tokens
from serving.sim.programs.programs import Call
from serving.slo import SloKind
from tests.sim.one_engine import FIRST, outcomes, program

pytestmark = pytest.mark.usefixtures("imported_vllm")

BEGIN_S = 100.0  # long after the engine began
ANSWERS = {
    "streams": {"kind": SloKind.LATENCY, "ttft_s": 1.0, "tbt_s": 0.05},
    "answers": {"kind": SloKind.DEADLINE, "deadline_s": 15.0},
}


def earned(promise: dict[str, object], prompts_due_s: float | None, *, save: bool) -> float:
    """What five answers of 300 tokens keep of their tokens beside 60 prompts of 4,000."""
    kind = SloKind.BEST_EFFORT if prompts_due_s is None else SloKind.DEADLINE
    answers = [
        program(f"answer-{n}", BEGIN_S + 0.01 * n, Call(200, 300), **promise) for n in range(5)
    ]
    prompts = [
        program(f"{n}", BEGIN_S + 1.0, Call(4000, 20), kind=kind, deadline_s=prompts_due_s)
        for n in range(60)
    ]
    policy = PolicySpec("calm", {"save": save})
    seen = outcomes([FIRST, *answers, *prompts], policy, BEGIN_S + 40.0)
    assert all(each.finished for each in seen)
    alone = outcomes([FIRST, *answers], policy, BEGIN_S + 40.0)
    names = {each.id for each in answers}
    ours, whole = (
        sum(tokens(each) for each in some if each.program_id in names) for some in (seen, alone)
    )
    return ours / whole


@pytest.mark.parametrize("prompts_due_s", [300.0, None], ids=["promised", "untagged"])
@pytest.mark.parametrize("promise", ANSWERS.values(), ids=ANSWERS)
def test_prompts_that_came_at_once_make_nobody_late(
    promise: dict[str, object], prompts_due_s: float | None
) -> None:
    assert earned(promise, prompts_due_s, save=True) > 0.95
    assert earned(promise, prompts_due_s, save=False) < 0.5, "there is nothing to mend"


@pytest.mark.parametrize("before_s", [0.0, BEGIN_S], ids=["a new engine", "one that was idle"])
def test_calls_that_come_at_once_are_no_overload_that_lasts(before_s: float) -> None:
    """120 calls of which the machine can keep all; an order by deadline keeps 92."""
    calls = [
        program(
            f"{n:03}",
            before_s,
            Call(1500 + n * 37 % 3000, 50 + n * 7 % 100),
            kind=SloKind.DEADLINE,
            deadline_s=10.0 + n * 13 % 50,
        )
        for n in range(120)
    ]
    seen = outcomes([FIRST, *calls], PolicySpec("calm"), before_s + 90.0)
    assert sum(tokens(each) > 0 for each in seen) > 1 + 0.95 * len(calls)


@pytest.mark.parametrize("pile_due_s", [7200.0, 300.0])
def test_a_pile_that_may_take_long_makes_no_call_late(pile_due_s: float) -> None:
    """300 calls at once, and one a second due in 12 s: the machine can serve them all in time."""
    promise = {"kind": SloKind.DEADLINE, "deadline_s": pile_due_s}
    pile = [
        program(f"pile-{n}", BEGIN_S, Call(500 + n * 37 % 2000, 200 + n * 7 % 400), **promise)
        for n in range(300)
    ]
    promise = {"kind": SloKind.DEADLINE, "deadline_s": 12.0}
    calls = [
        program(f"{n}", BEGIN_S + 1 + n, Call(500 + n * 37 % 2500, 50 + n * 7 % 250), **promise)
        for n in range(60)
    ]
    seen = outcomes([FIRST, *pile, *calls], PolicySpec("calm"), BEGIN_S + 200.0)
    kept = {each.program_id for each in seen if tokens(each) > 0}
    assert len(kept & {each.id for each in pile}) == len(pile)
    assert len(kept & {each.id for each in calls}) > 0.9 * len(calls)
