"""SLOs-Serve: admitted requests are served in time, declined ones share the rest."""

from __future__ import annotations

from typing import Any

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.baselines.slos_serve import slos_serve
from serving.requests import RequestView
from serving.slo import FutureWork
from serving.view import Plan, StepModel
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

MODEL = StepModel(base_s=0.0625, token_s=0.0078125)
"""Steps of 0.25 s, a quarter of it fixed cost: 24 tokens per step."""


def planned(*requests: RequestView, batch: int = 8, **changes: Any) -> Plan:
    return slos_serve(step(*requests, **{"token_s": 0.25, "model": MODEL} | changes), batch=batch)


def prompt(request_id: str, tokens: int, *, ttft_s: float, **changes: Any) -> RequestView:
    return request(request_id, prompt_tokens=tokens, slo=latency(ttft_s, 1.0), **changes)


def test_declined_requests_come_after_all_admitted_ones() -> None:
    """The machine prefills 96 tokens in a second: neither a and b, nor huge alone."""
    plan = planned(
        prompt("a", 60, ttft_s=1.0),
        prompt("b", 50, ttft_s=1.0, arrival_s=0.0),
        prompt("c", 40, ttft_s=1.5),
        prompt("huge", 400, ttft_s=1.9),
    )
    assert plan.order[:2] == ("b", "c")
    assert plan.order[2:] == ("a", "huge")


def test_admitted_prompts_are_ordered_by_prefill_deadline() -> None:
    plan = planned(prompt("later", 10, ttft_s=9.0), prompt("soon", 60, ttft_s=2.0))
    assert plan.order == ("soon", "later")


def test_the_prefill_deadline_of_a_deadline_request_leaves_time_for_its_answer() -> None:
    """Ten steps of 0.25 s end at 3 s only if the prefill ends within 0.5 s."""
    paced = request("paced", prompt_tokens=10, slo=deadline(3.0))
    assert planned(prompt("stream", 10, ttft_s=0.6), paced).order[0] == "paced"
    assert planned(prompt("stream", 10, ttft_s=0.4), paced).order[0] == "stream"
    assert planned(prompt("stream", 10, ttft_s=9.0), paced._replace(slo=deadline(2.4))).order == (
        "stream",
        "paced",
    )


def test_an_urgent_decode_precedes_prompts_and_another_decode_follows_them() -> None:
    waiting = prompt("new", 60, ttft_s=2.0)
    due = running("s", slo=latency(0.5, 1.0))
    assert planned(due, waiting).order == ("s", "new")
    ahead = running("s", slo=latency(5.0, 1.0))
    assert planned(ahead, waiting).order == ("new", "s")
    assert planned(ahead, waiting).run == {"new"}


def test_a_stage_is_admitted_by_its_sub_deadline_and_later_by_its_program_s_deadline() -> None:
    """Its ten tokens take 2.5 s: too long for the stage, not for the program."""
    call = request("call", slo=compound(2.0, final_s=20.0, program="run"))
    stream = prompt("stream", 10, ttft_s=2.0)
    assert planned(call, stream).order == ("stream", "call")
    declined = prompt("declined", 4000, ttft_s=2.5)
    assert planned(call, declined, now_s=2.25).order == ("call", "declined")


def test_the_demand_of_a_program_that_has_not_begun_includes_its_predicted_rest() -> None:
    length = LengthSketch((10.0,) * len(LENGTH_LEVELS))
    rest = FutureWork(9.0, 4000.0, 90.0, 9.0, 0.0)
    slo = compound(10.0, final_s=20.0, program="run", length=length, future=rest)
    call, stream = request("call", slo=slo), prompt("stream", 400, ttft_s=9.9)
    assert planned(call, stream).order == ("stream", "call")
    begun = call._replace(program_tokens=5.0)
    assert planned(begun, stream).order == ("call", "stream")


def test_a_decode_stays_admitted_even_if_its_length_bound_is_too_long() -> None:
    """40 tokens within a second are impossible, but the answer may be shorter than its bound."""
    new = prompt("new", 60, ttft_s=2.0)
    behind = running("behind", slo=deadline(1.0), max_tokens=40)
    assert planned(behind, new).order == ("behind", "new")
    waiting = request("waiting", slo=deadline(1.0), max_tokens=40)
    assert planned(waiting, new).order == ("new", "waiting")


def test_a_step_takes_the_tightest_tbt_within_2_to_4_times_the_fixed_cost() -> None:
    assert planned(prompt("s", 60, ttft_s=2.0)).step_tokens == 24
    hasty = request("s", prompt_tokens=60, slo=latency(2.0, 0.1875))
    assert planned(hasty).step_tokens == 16
    impossible = request("s", prompt_tokens=60, slo=latency(2.0, 0.001))
    assert planned(impossible).step_tokens == 8


def test_expired_work_runs_only_if_no_feasible_request_is_left_out() -> None:
    late = running("late", slo=deadline(1.0))
    changes: dict[str, float] = {"ttft_s": 9.0, "arrival_s": 4.0, "unscheduled_s": 4.0}
    plan = planned(late, prompt("new", 100, **changes), now_s=5.0)
    assert plan.order == ("new", "late")
    assert plan.run == {"new"}
    assert planned(late, prompt("new", 5, **changes), now_s=5.0).run == {"new", "late"}
