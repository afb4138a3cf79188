"""SLOs-Serve: the admitted are served in time, the declined share what is left."""

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
"""Steps of 0.25 s of which three quarters are to be given: 24 tokens."""


def planned(*requests: RequestView, batch: int = 8, **changes: Any) -> Plan:
    return slos_serve(step(*requests, **{"token_s": 0.25, "model": MODEL} | changes), batch=batch)


def prompt(request_id: str, tokens: int, *, ttft_s: float, **changes: Any) -> RequestView:
    return request(request_id, prompt_tokens=tokens, slo=latency(ttft_s, 1.0), **changes)


def test_who_cannot_be_served_in_time_comes_after_all_who_can() -> None:
    """In a second the machine reads 96 tokens: not the first two, and not the last alone."""
    plan = planned(
        prompt("a", 60, ttft_s=1.0),
        prompt("b", 50, ttft_s=1.0, arrival_s=0.0),
        prompt("c", 40, ttft_s=1.5),
        prompt("huge", 400, ttft_s=1.9),
    )
    assert plan.order[:2] == ("b", "c")
    assert plan.order[2:] == ("a", "huge")


def test_the_admitted_are_read_by_the_time_when_they_must_have_been() -> None:
    plan = planned(prompt("later", 10, ttft_s=9.0), prompt("soon", 60, ttft_s=2.0))
    assert plan.order == ("soon", "later")


def test_a_deadlines_prompt_must_be_read_while_its_answer_can_still_be_written() -> None:
    """Ten steps of 0.25 s end at 3 s only if the prompt is read within half a second."""
    paced = request("paced", prompt_tokens=10, slo=deadline(3.0))
    assert planned(prompt("stream", 10, ttft_s=0.6), paced).order[0] == "paced"
    assert planned(prompt("stream", 10, ttft_s=0.4), paced).order[0] == "stream"
    assert planned(prompt("stream", 10, ttft_s=9.0), paced._replace(slo=deadline(2.4))).order == (
        "stream",
        "paced",
    )


def test_a_decode_that_is_due_comes_before_prompts_and_one_that_is_not_comes_after() -> None:
    waiting = prompt("new", 60, ttft_s=2.0)
    due = running("s", slo=latency(0.5, 1.0))
    assert planned(due, waiting).order == ("s", "new")
    ahead = running("s", slo=latency(5.0, 1.0))
    assert planned(ahead, waiting).order == ("new", "s")
    assert planned(ahead, waiting).run == {"new"}


def test_a_stage_is_served_for_its_own_deadline_and_past_it_for_its_programs() -> None:
    """Its ten tokens take 2.5 s: too long for what the stage has left, not for the program."""
    call = request("call", slo=compound(2.0, final_s=20.0, program="run"))
    stream = prompt("stream", 10, ttft_s=2.0)
    assert planned(call, stream).order == ("stream", "call")
    declined = prompt("declined", 4000, ttft_s=2.5)
    assert planned(call, declined, now_s=2.25).order == ("call", "declined")


def test_a_program_asks_for_its_learned_rest_until_it_has_begun() -> None:
    length = LengthSketch((10.0,) * len(LENGTH_LEVELS))
    rest = FutureWork(9.0, 4000.0, 90.0, 9.0, 0.0)
    slo = compound(10.0, final_s=20.0, program="run", length=length, future=rest)
    call, stream = request("call", slo=slo), prompt("stream", 400, ttft_s=9.9)
    assert planned(call, stream).order == ("stream", "call")
    begun = call._replace(program_tokens=5.0)
    assert planned(begun, stream).order == ("call", "stream")


def test_who_decodes_stays_admitted_however_long_its_answer_may_become() -> None:
    """Forty tokens within a second cannot be; that its prediction was right is not known."""
    newcomer = prompt("new", 60, ttft_s=2.0)
    behind = running("behind", slo=deadline(1.0), max_tokens=40)
    assert planned(behind, newcomer).order == ("behind", "new")
    waiting = request("waiting", slo=deadline(1.0), max_tokens=40)
    assert planned(waiting, newcomer).order == ("new", "waiting")


def test_steps_are_as_short_as_streams_ask_but_waste_no_machine() -> None:
    assert planned(prompt("s", 60, ttft_s=2.0)).step_tokens == 24
    hasty = request("s", prompt_tokens=60, slo=latency(2.0, 0.1875))
    assert planned(hasty).step_tokens == 16
    impossible = request("s", prompt_tokens=60, slo=latency(2.0, 0.001))
    assert planned(impossible).step_tokens == 8


def test_expired_work_fills_what_feasible_work_leaves() -> None:
    late = running("late", slo=deadline(1.0))
    new: dict[str, float] = {"ttft_s": 9.0, "arrival_s": 4.0, "unscheduled_s": 4.0}
    plan = planned(late, prompt("new", 100, **new), now_s=5.0)
    assert plan.order == ("new", "late")
    assert plan.run == {"new"}
    assert planned(late, prompt("new", 5, **new), now_s=5.0).run == {"new", "late"}
