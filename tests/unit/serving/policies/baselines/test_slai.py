"""SLAI: a decode that can wait lets prompts be read; one that cannot comes first."""

from __future__ import annotations

from typing import Any

from serving.policies.baselines.slai import slai
from serving.requests import RequestView
from serving.view import Plan, StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.5, token_s=0.125)


def planned(*requests: RequestView, **changes: Any) -> Plan:
    """Steps of 0.25 s on average; a stream's TBT of 1.5 s would make them of 8 tokens."""
    defaults = {"slots": 8, "token_s": 0.1, "mean_step_s": 0.25, "model": MODEL, "now_s": 10.0}
    return slai(step(*requests, **defaults | changes))


def stream(request_id: str, *, due_in_s: float, **changes: Any) -> RequestView:
    """Its next token is due so many seconds from 10: one TBT after its last came, whatever the
    promise of its first leaves."""
    tbt_s = max(due_in_s, 1.5)
    began_s = 10.0 + due_in_s - tbt_s - 0.25
    slo = latency(500.0, tbt_s)
    return running(request_id, slo=slo, max_tokens=99, unscheduled_s=began_s, **changes)


def test_a_decode_waits_for_prompts_until_its_last_schedulable_time() -> None:
    """Five steps of 0.25 s before its token is due it becomes critical."""
    prompt = request("prompt", prompt_tokens=40)
    assert planned(stream("s", due_in_s=1.5), prompt).run == {"prompt"}
    assert planned(stream("s", due_in_s=1.25), prompt).run == {"s", "prompt"}


def test_a_deferred_decode_takes_the_tokens_that_prompts_leave() -> None:
    plan = planned(stream("s", due_in_s=9.0), request("prompt", prompt_tokens=7))
    assert plan.run == {"s", "prompt"}
    assert plan.order == ("prompt", "s")


def test_with_little_memory_left_decodes_become_critical_earlier() -> None:
    requests = (stream("s", due_in_s=2.0), request("prompt", prompt_tokens=40))
    assert planned(*requests, kv_tokens=2000, free_kv_tokens=200).run == {"prompt"}
    assert planned(*requests, kv_tokens=2000, free_kv_tokens=79).order[0] == "s"


def test_the_shortest_new_prompt_is_read_first_and_a_begun_one_before_it() -> None:
    plan = planned(
        request("long", prompt_tokens=30),
        request("short", prompt_tokens=5, arrival_s=1.0),
        running("begun", prompt_tokens=500, computed_tokens=10),
    )
    assert plan.order == ("begun", "short", "long")


def test_a_deadline_is_a_pace() -> None:
    """Ten tokens within 3 s allow no wait of five steps; within 30 s they do."""
    prompt = request("prompt", prompt_tokens=40)
    hasty = running("hasty", slo=deadline(13.0), unscheduled_s=10.0)
    assert planned(hasty, prompt).order == ("hasty", "prompt")
    calm = running("calm", slo=deadline(40.0), unscheduled_s=10.0)
    assert planned(calm, prompt).order == ("prompt", "calm")


def test_new_prompts_begin_only_while_the_active_are_few_enough() -> None:
    active = [stream(name, due_in_s=9.0) for name in "ab"]
    new = request("new", prompt_tokens=40)
    full = slai(step(*active, new, slots=8, token_s=0.25, model=MODEL, now_s=10.0), batch=2)
    assert full.run == {"a", "b"}
    assert planned(*active, new).run == {"new"}


def test_a_step_keeps_to_the_tightest_tbt_of_all_streams() -> None:
    plan = planned(stream("s", due_in_s=0.5), request("prompt", prompt_tokens=40))
    assert plan.step_tokens == 8
    assert planned(request("prompt")).step_tokens == 12  # a quarter of it is fixed cost
