"""Phases of requests, the decode intervals that deadlines need, and filling of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from serving.policies.prefill_decode import (
    decode_interval_s,
    fill_step,
    is_decoding,
    plan_of_step,
    step_seconds,
    token_due_s,
    tokens_within,
    uncomputed_tokens,
)
from serving.policies.urgency import deadline_class
from serving.requests import RequestView
from serving.slo import OnLate, Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.25, token_s=0.125, sequence_s=0.0625, context_s=0.03125)
"""Powers of two, so that sums are exact."""


def test_a_preempted_answer_is_computed_again_with_its_prompt() -> None:
    requests = step(
        request("new"),
        request("half", computed_tokens=4),
        running("decoding", computed_tokens=12, output_tokens=3),
        request("preempted", output_tokens=3),
    ).requests
    assert uncomputed_tokens(requests).tolist() == [10, 6, 1, 13]
    assert is_decoding(requests).tolist() == [False, False, True, False]


def test_a_prompt_of_one_token_is_prefill() -> None:
    assert not is_decoding(step(request("one", prompt_tokens=1)).requests)[0]


def test_the_interval_of_a_deadline_is_time_left_over_remaining_tokens() -> None:
    view = step(
        request("paced", slo=deadline(30.0)),
        request("stream", slo=latency(5.0, 0.5)),
        request("any"),
        now_s=10.0,
    )
    intervals_s = decode_interval_s(view, np.array([40.0, 40.0, 40.0]), view.requests.deadline_s)
    assert intervals_s.tolist() == [0.5, 0.5, np.inf]


def test_a_token_is_due_by_the_schedule_of_a_stream_or_an_interval_after_the_last_step() -> None:
    stream = running("stream", slo=latency(5.0, 2.0), output_tokens=3)
    paced = running("paced", slo=deadline(30.0), unscheduled_s=7.5)
    view = step(stream, paced, now_s=10.0, token_s=0.5, mean_step_s=0.75)
    assert token_due_s(view, np.array([2.0, 4.0])).tolist() == [11.0, 12.25]


@pytest.mark.parametrize("step_s", [0.5, 1.0, 2.0, 3.0])
def test_the_budget_is_the_largest_whose_step_takes_at_most_the_given_time(step_s: float) -> None:
    view = step(running("a", computed_tokens=4), request("b"), model=MODEL)
    decodes = is_decoding(view.requests) | (view.requests.computed_tokens > 0)
    budget = tokens_within(view, decodes, step_s)

    def seconds(tokens: int) -> float:
        return MODEL.seconds(new_tokens=tokens, num_decodes=1, decode_context_tokens=4)

    assert budget == 1 or seconds(budget) <= step_s
    assert seconds(budget + 1) > step_s


def test_the_budget_is_at_most_the_engine_s_and_at_least_the_number_of_decodes() -> None:
    view = step(running("a"), running("b"), model=MODEL, step_tokens=7)
    decodes = is_decoding(view.requests)
    assert tokens_within(view, decodes, np.inf) == 7
    assert tokens_within(view, decodes, 0.0) == 2
    free = view._replace(model=StepModel(base_s=0.25))
    assert (tokens_within(free, decodes, 1.0), tokens_within(free, decodes, 0.1)) == (7, 2)


def test_a_step_takes_the_tightest_tbt_within_2_to_4_times_the_fixed_cost() -> None:
    """With a fixed cost of 0.25 s, steps take 0.5 to 1 s."""
    slos = [latency(1.0, tbt_s) for tbt_s in (0.001, 0.75, 3.0)]
    view = step(*(request(str(slo.tbt_s), slo=slo) for slo in slos), model=MODEL)
    assert step_seconds(view, np.array([True, True, True])) == 0.5
    assert step_seconds(view, np.array([False, True, True])) == 0.75
    assert step_seconds(view, np.array([False, False, True])) == 1.0
    assert step_seconds(view, np.array([False, False, False])) == 1.0


def filled(
    *requests: RequestView,
    tier: Sequence[int] = (),
    size: int = 9,
    budget: int = 99,
    **changes: Any,
) -> set[str]:
    """Ids of the requests in the step; without tiers all are in the same one."""
    view = step(*requests, **changes)
    tiers = np.array(tier or [0] * len(requests), dtype=np.int64)
    chosen = fill_step(view, np.arange(len(requests)), tiers, size=size, budget=budget)
    return set(view.requests.request_id[chosen].tolist())


def test_a_step_is_filled_until_its_tokens_are_spent() -> None:
    three = [request(name) for name in "abc"]
    assert filled(*three, budget=11) == {"a", "b"}  # the second is computed in part
    assert filled(*three, budget=10) == {"a"}


def test_a_prompt_without_a_slot_takes_no_tokens_from_requests_behind_it() -> None:
    """Active requests keep their slots even behind new ones."""
    mine = running("mine")
    assert filled(request("new"), mine, size=1, budget=10) == {"mine"}
    assert filled(request("new"), mine, size=2, budget=11) == {"new", "mine"}


def test_a_prompt_whose_memory_is_not_free_waits() -> None:
    names = [request("a", prompt_tokens=50), request("b", prompt_tokens=60), running("c")]
    assert filled(*names, budget=200, kv_tokens=1000, free_kv_tokens=140) == {"a", "c"}
    assert filled(*names, budget=200, kv_tokens=1000, free_kv_tokens=160) == {"a", "b", "c"}


def test_a_new_request_takes_a_slot_only_from_a_lower_tier() -> None:
    """The request of the lower tier is computed all the same, if its slot is not needed first."""
    new, mine = request("new"), running("mine")
    assert filled(new, mine, tier=(0, 1), size=1) == {"new"}
    assert filled(new, mine, tier=(1, 0), size=1) == {"mine"}
    assert filled(new, mine, request("newer"), tier=(0, 1, 1), size=2) == {"new", "mine"}


def test_a_new_request_takes_memory_only_from_a_lower_tier() -> None:
    """40 of the 1000 tokens of KV cache are never allocated to new requests."""
    new, mine = request("new", prompt_tokens=100), running("mine", computed_tokens=60)
    room: dict[str, Any] = {"budget": 200, "kv_tokens": 1000, "free_kv_tokens": 100}
    assert filled(new, mine, tier=(0, 1), **room) == {"new", "mine"}
    assert filled(new, mine, tier=(0, 0), **room) == {"mine"}
    assert filled(new, mine, tier=(1, 0), **room) == {"mine"}


def test_late_work_runs_only_if_no_feasible_request_is_left_out() -> None:
    late = running("late", slo=deadline(1.0))
    view = step(request("a"), request("b"), late, now_s=5.0)
    order, classes = np.arange(3), deadline_class(view)
    held = plan_of_step(view, order, np.array([True, False, True]), classes)
    assert held.order == ("a", "b", "late")
    assert held.run == {"a"}
    assert plan_of_step(view, order, np.array([True, True, True]), classes).run == {
        "a",
        "b",
        "late",
    }


def test_a_request_runs_even_if_the_chosen_one_is_dropped() -> None:
    impatient = request("impatient", slo=Slo(waiting_s=1.0, on_late=OnLate.DROP))
    view = step(impatient, request("other"), now_s=5.0)
    plan = plan_of_step(view, np.arange(2), np.array([True, False]), deadline_class(view))
    assert plan.run == {"other"}
    assert [request_id for request_id, _ in plan.drop] == ["impatient"]


def test_the_budget_counts_prefill_at_the_typical_token_cost_and_decodes_at_their_own() -> None:
    """The decodes leave 1 s, which is 4 tokens of a typical prompt."""
    view = step(running("a"), running("b"), request("c"), model=MODEL, step_tokens=100)
    view = view._replace(prefill_token_s=0.25)
    decodes = is_decoding(view.requests)
    decodes_s = 0.25 + 2 * (0.125 + 0.0625) + 20 * 0.03125
    assert tokens_within(view, decodes, decodes_s + 1.0) == 2 + 4
