"""calm under a burst of prompts that the machine can serve in time."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from serving.goodput import tokens
from serving.policies.calm import calm
from serving.policies.table import PolicySpec
from serving.sim.programs.programs import Call
from serving.slo import SloKind
from tests.sim.one_engine import FIRST, outcomes, program

pytestmark = pytest.mark.usefixtures("imported_vllm")

BEGIN_S = 100.0  # long after the engine's start
ANSWERS = {
    "streams": {"kind": SloKind.LATENCY, "ttft_s": 1.0, "tbt_s": 0.05},
    "answers": {"kind": SloKind.DEADLINE, "deadline_s": 15.0},
}


def kept_share(slo: dict[str, object], prompts_due_s: float | None) -> float:
    """Goodput of five answers of 300 tokens beside 60 prompts of 4,000 / their goodput alone."""
    kind = SloKind.BEST_EFFORT if prompts_due_s is None else SloKind.DEADLINE
    answers = [program(f"answer-{n}", BEGIN_S + 0.01 * n, Call(200, 300), **slo) for n in range(5)]
    prompts = [
        program(f"{n}", BEGIN_S + 1.0, Call(4000, 20), kind=kind, deadline_s=prompts_due_s)
        for n in range(60)
    ]
    policy = PolicySpec("calm")
    beside = outcomes([FIRST, *answers, *prompts], policy, BEGIN_S + 40.0)
    assert all(each.finished for each in beside)
    alone = outcomes([FIRST, *answers], policy, BEGIN_S + 40.0)
    names = {each.id for each in answers}
    beside_tokens, alone_tokens = (
        sum(tokens(each) for each in results if each.program_id in names)
        for results in (beside, alone)
    )
    return beside_tokens / alone_tokens


@pytest.mark.parametrize("prompts_due_s", [300.0, None], ids=["deadline", "untagged"])
@pytest.mark.parametrize("slo", ANSWERS.values(), ids=ANSWERS)
def test_a_burst_of_prompts_makes_no_answer_late(
    slo: dict[str, object], prompts_due_s: float | None
) -> None:
    assert kept_share(slo, prompts_due_s) > 0.95


def test_steps_are_shortened_for_answers_beside_a_burst_that_is_admitted_too() -> None:
    with patch.object(calm, "backlog_duration", lambda view, step, *args, **kwargs: step):
        assert kept_share(ANSWERS["answers"], 300.0) < 0.5


@pytest.mark.parametrize("before_s", [0.0, BEGIN_S], ids=["a new engine", "one that was idle"])
def test_a_burst_of_calls_is_not_treated_as_a_lasting_overload(before_s: float) -> None:
    """120 calls that the machine can all serve in time; in order of deadlines it serves 92."""
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
    results = outcomes([FIRST, *calls], PolicySpec("calm"), before_s + 90.0)
    assert sum(tokens(each) > 0 for each in results) > 1 + 0.95 * len(calls)


@pytest.mark.parametrize("batch_due_s", [7200.0, 300.0])
def test_a_batch_with_a_late_deadline_makes_no_call_late(batch_due_s: float) -> None:
    """300 calls at once, and one a second due in 12 s: the machine can serve them all in time."""
    slo = {"kind": SloKind.DEADLINE, "deadline_s": batch_due_s}
    batch = [
        program(f"pile-{n}", BEGIN_S, Call(500 + n * 37 % 2000, 200 + n * 7 % 400), **slo)
        for n in range(300)
    ]
    slo = {"kind": SloKind.DEADLINE, "deadline_s": 12.0}
    calls = [
        program(f"{n}", BEGIN_S + 1 + n, Call(500 + n * 37 % 2500, 50 + n * 7 % 250), **slo)
        for n in range(60)
    ]
    results = outcomes([FIRST, *batch, *calls], PolicySpec("calm"), BEGIN_S + 200.0)
    in_time = {each.program_id for each in results if tokens(each) > 0}
    assert len(in_time & {each.id for each in batch}) == len(batch)
    assert len(in_time & {each.id for each in calls}) > 0.9 * len(calls)
