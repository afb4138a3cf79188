"""SLAI: deferred decodes follow prompts, critical decodes precede them."""

from __future__ import annotations

from typing import Any

from serving.policies.baselines.slai import slai
from serving.requests import RequestView
from serving.view import Plan, StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.5, token_s=0.125)


def planned(*requests: RequestView, **changes: Any) -> Plan:
    """A plan with measured steps of 0.25 s on average and 8 slots, at time 10."""
    defaults = {"slots": 8, "token_s": 0.1, "mean_step_s": 0.25, "model": MODEL, "now_s": 10.0}
    return slai(step(*requests, **defaults | changes))


def stream(request_id: str, *, due_in_s: float, **changes: Any) -> RequestView:
    """A stream with its next token due this many seconds after time 10.

    It is due one TBT after the last one; the TTFT is too long to matter.
    """
    tbt_s = max(due_in_s, 1.5)
    last_step_s = 10.0 + due_in_s - tbt_s - 0.25
    slo = latency(500.0, tbt_s)
    return running(request_id, slo=slo, max_tokens=99, unscheduled_s=last_step_s, **changes)


def test_a_decode_is_deferred_until_it_becomes_critical() -> None:
    """It becomes critical five steps of 0.25 s before its token is due."""
    prompt = request("prompt", prompt_tokens=40)
    assert planned(stream("s", due_in_s=1.5), prompt).run == {"prompt"}
    assert planned(stream("s", due_in_s=1.25), prompt).run == {"s", "prompt"}


def test_a_deferred_decode_uses_the_tokens_that_prompts_leave() -> None:
    plan = planned(stream("s", due_in_s=9.0), request("prompt", prompt_tokens=7))
    assert plan.run == {"s", "prompt"}
    assert plan.order == ("prompt", "s")


def test_decodes_become_critical_earlier_when_memory_is_short() -> None:
    requests = (stream("s", due_in_s=2.0), request("prompt", prompt_tokens=40))
    assert planned(*requests, kv_tokens=2000, free_kv_tokens=200).run == {"prompt"}
    assert planned(*requests, kv_tokens=2000, free_kv_tokens=79).order[0] == "s"


def test_prefills_that_have_begun_precede_new_prompts_and_the_shortest_is_first() -> None:
    plan = planned(
        request("long", prompt_tokens=30),
        request("short", prompt_tokens=5, arrival_s=1.0),
        running("begun", prompt_tokens=500, computed_tokens=10),
    )
    assert plan.order == ("begun", "short", "long")


def test_a_deadline_is_treated_as_a_decode_interval() -> None:
    """Ten tokens within 3 s make the decode critical; within 30 s they do not."""
    prompt = request("prompt", prompt_tokens=40)
    tight = running("tight", slo=deadline(13.0), unscheduled_s=10.0)
    assert planned(tight, prompt).order == ("tight", "prompt")
    loose = running("loose", slo=deadline(40.0), unscheduled_s=10.0)
    assert planned(loose, prompt).order == ("prompt", "loose")


def test_new_prompts_begin_only_below_the_limit_on_active_requests() -> None:
    active = [stream(name, due_in_s=9.0) for name in "ab"]
    new = request("new", prompt_tokens=40)
    full = slai(step(*active, new, slots=8, token_s=0.25, model=MODEL, now_s=10.0), batch=2)
    assert full.run == {"a", "b"}
    assert planned(*active, new).run == {"new"}


def test_a_step_takes_at_most_the_tightest_tbt() -> None:
    plan = planned(stream("s", due_in_s=0.5), request("prompt", prompt_tokens=40))
    assert plan.step_tokens == 8
    assert planned(request("prompt")).step_tokens == 12  # limited to four times the fixed cost
