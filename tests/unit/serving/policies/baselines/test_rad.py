"""RAD: prefill until a tile of decodes is full, then decodes until one ends."""

from __future__ import annotations

from typing import Any

from serving.policies.baselines.rad import rad
from serving.requests import RequestView
from serving.view import Plan
from tests.unit.serving.serving_examples import deadline, request, running, step


def planned(*requests: RequestView, batch: int = 2, **changes: Any) -> Plan:
    return rad(step(*requests, **changes), batch=batch, tile_tokens=16)


def test_no_decode_runs_while_a_tile_has_room_and_a_prompt_waits() -> None:
    assert planned(running("a"), request("b")).run == {"b"}


def test_a_full_tile_decodes_and_no_prompt_is_prefilled() -> None:
    plan = planned(running("a"), running("b"), request("c"))
    assert plan.run == {"a", "b"}
    assert plan.steps > 1


def test_without_prompts_the_decodes_run() -> None:
    assert planned(running("a")).run == {"a"}


def test_prompts_are_prefilled_first_come_first_served_until_the_tile_is_full() -> None:
    late, early = request("a", arrival_s=2.0), request("b", arrival_s=1.0)
    assert planned(late, early, running("c"), now_s=3.0).run == {"b"}
    assert planned(late, early, now_s=3.0).run == {"a", "b"}


def test_a_prefill_that_has_begun_precedes_new_prompts() -> None:
    begun = running("begun", prompt_tokens=300, arrival_s=2.0)
    plan = planned(begun, running("c"), request("new", arrival_s=1.0), now_s=3.0)
    assert plan.run == {"begun"}


def test_prefill_steps_are_whole_tiles_within_the_engine_s_budget() -> None:
    assert planned(request("a")).step_tokens == 96
    assert planned(request("a"), step_tokens=7).step_tokens == 7


def test_a_prefill_plan_is_valid_until_its_prompts_are_computed() -> None:
    assert planned(request("a", prompt_tokens=10)).steps == 1
    assert planned(request("a", prompt_tokens=960)).steps == 10


def test_a_prompt_without_memory_waits_as_if_the_tile_were_full() -> None:
    decoding, new = running("a"), request("new", prompt_tokens=50)
    assert planned(decoding, new, kv_tokens=100, free_kv_tokens=40).run == {"a"}
    assert planned(decoding, new, kv_tokens=100, free_kv_tokens=90).run == {"new"}


def test_expired_work_runs_only_if_no_feasible_request_is_left_out() -> None:
    late = running("late", slo=deadline(1.0))
    assert planned(late, request("new"), now_s=5.0).run == {"new"}
    assert planned(late, running("a"), now_s=5.0).run == {"a", "late"}
