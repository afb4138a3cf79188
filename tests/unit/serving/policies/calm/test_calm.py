"""Plans of calm, beyond the laws that every policy satisfies."""

from __future__ import annotations

import numpy as np
import pytest

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.calm.calm import CROWD, HELD_SHARE, HELD_STEPS, _mean_tokens, calm
from serving.policies.calm.program_demand import arrived_programs
from serving.requests import Requests, RequestView
from serving.slo import FutureWork, Slo, SloKind
from serving.view import StepModel, StepView
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.02, token_s=1e-4, sequence_s=0.0, context_s=0.0)


def test_a_late_decode_ranks_behind_a_prompt_that_is_not_late() -> None:
    """Decodes that are not late come first, because each takes a single token."""
    late = running("late", slo=deadline(1.0), computed_tokens=12, output_tokens=3)
    in_time = running("in time", slo=deadline(100.0), computed_tokens=12, output_tokens=3)
    view = step(late, in_time, request("prompt"), now_s=50.0, model=MODEL, slots=3)
    plan = calm(view)
    assert plan.order == ("in time", "prompt", "late")


@pytest.mark.parametrize("ttfts_s", [[], [60.0, 70.0]])
def test_a_plan_answers_the_arrivals_of_a_few_steps(ttfts_s: list[float]) -> None:
    plan = calm(beside_streams(ttfts_s), frame_steps=10)
    assert (plan.least_steps, plan.steps) == (HELD_STEPS, 10)
    assert calm(beside_streams(ttfts_s), frame_steps=2).steps == HELD_STEPS


def test_a_plan_holds_longer_with_many_requests_but_not_if_first_tokens_are_due() -> None:
    crowd = beside_streams([]).requests.take(np.zeros(20 * CROWD, dtype=np.int64))
    many = beside_streams([])._replace(requests=crowd)
    assert calm(many).least_steps == HELD_STEPS + 20
    assert calm(many).steps == HELD_STEPS + 20
    streams = beside_streams([0.5])
    assert calm(many._replace(arrivals=streams.arrivals), pace=0.05).least_steps == 2


@pytest.mark.parametrize(("shortest_s", "least_steps"), [(0.65, 3), (0.5, 2), (0.01, 1)])
def test_a_plan_holds_for_at_most_a_quarter_of_the_shortest_ttft_of_recent_streams(
    shortest_s: float, least_steps: int
) -> None:
    assert HELD_SHARE * shortest_s / 0.05 < least_steps + 1
    plan = calm(beside_streams([20.0, shortest_s, 2.0]), pace=0.05)
    assert plan.least_steps == least_steps


@pytest.mark.parametrize(("shortest_s", "least_steps"), [(0.65, 3), (0.5, 2), (0.01, HELD_STEPS)])
def test_a_plan_holds_for_at_most_a_quarter_of_the_shortest_deadline_that_can_be_met(
    shortest_s: float, least_steps: int
) -> None:
    arrivals = [
        request(f"{s}", slo=deadline(s), arrival_s=90.0, max_tokens=4) for s in (shortest_s, 20.0)
    ]
    view = beside_streams([])._replace(now_s=100.0, arrivals=Requests.of(arrivals))
    assert calm(view, pace=0.05).least_steps == least_steps


def beside_streams(ttfts_s: list[float]) -> StepView:
    """One request after the arrival of streams with these TTFTs, and of one with a deadline."""
    streams = [request(f"{n}", slo=latency(s, 10.0)) for n, s in enumerate(ttfts_s)]
    arrivals = Requests.of([*streams, request("other", slo=deadline(0.01))])
    return step(request("one"), model=MODEL, token_s=0.01, step_tokens=2000, arrivals=arrivals)


@pytest.mark.parametrize(("deadline_s", "first"), [(3.0, "begun"), (1.0, "other")])
def test_a_program_that_has_begun_is_given_up_if_it_is_late_with_the_shortest_steps(
    deadline_s: float, first: str
) -> None:
    """100 tokens in steps of 20 ms take 2 s."""
    slo = deadline(deadline_s, length=LengthSketch((100.0,) * len(LENGTH_LEVELS)))
    begun = running("begun", slo=slo, max_tokens=2000, program_tokens=10)
    other = request("other", slo=deadline(90.0), max_tokens=40)
    assert calm(step(begun, other, model=MODEL, slots=1, token_s=0.02)).order[0] == first


def test_at_low_load_nothing_waits_for_steps_that_are_short_for_first_tokens() -> None:
    """The prompts are computed already, so that the shortest steps would be best for new ones."""
    slo = latency(2000.0, 2000.0)
    streams = [request(f"{n}", slo=slo, prompt_tokens=1, max_tokens=1) for n in range(6)]
    others = [
        request("deadline", slo=deadline(2000.0), prompt_tokens=1, max_tokens=8),
        request("free", prompt_tokens=1, max_tokens=1),
    ]
    model = StepModel(base_s=0.015, token_s=5e-5, sequence_s=1e-5)
    view = step(*streams, *others, model=model, slots=8, step_tokens=2048, token_s=0.02)
    assert len(calm(view).run) == 8


def test_the_oldest_best_effort_request_past_its_default_deadline_runs() -> None:
    waiting = [request(f"{arrival_s}", arrival_s=arrival_s) for arrival_s in (3.0, 2.0)]
    in_time = running("in time", slo=deadline(200.0), computed_tokens=12, output_tokens=3)
    busy = step(*waiting, in_time, now_s=100.0, model=MODEL, slots=2, token_s=0.02)
    assert calm(busy).run == {"in time", "2.0"}


def test_steps_are_limited_to_what_recent_programs_with_slos_can_bear() -> None:
    """100 tokens within 10 s bear steps below 0.1 s; best-effort work does not limit steps."""
    tight, free = (request("one", slo=slo, max_tokens=100) for slo in (deadline(10.0), Slo()))
    budget = calm(step(tight, model=MODEL, arrivals=Requests.of([tight]))).step_tokens
    assert budget is not None
    assert MODEL.seconds(new_tokens=budget, num_decodes=0, decode_context_tokens=0) < 0.1 / 0.75
    view = step(free, model=MODEL, arrivals=Requests.of([free]))
    assert calm(view).step_tokens == view.step_tokens


def test_a_frame_has_no_more_decodes_than_fit_in_its_steps() -> None:
    """Steps of 29.5 ms leave 9.5 ms for decodes of 1 ms; those with least slack come first."""
    model = StepModel(base_s=0.02, token_s=1e-3, sequence_s=0.0, context_s=0.0)
    crowd = [
        running(f"{number:02}", slo=deadline(900.0 - number), output_tokens=1, max_tokens=100)
        for number in range(30)
    ]
    plan = calm(step(*crowd, now_s=1.0, model=model, slots=64), pace=0.0295)
    assert plan.run == {f"{number:02}" for number in range(20, 30)}


def of_user(user: str, served: float, request_id: str, output_tokens: int) -> RequestView:
    slo = deadline(20.0, user=user)
    return request(
        request_id, slo=slo, prompt_tokens=100, max_tokens=output_tokens, user_tokens=served
    )


def test_best_effort_work_does_not_change_the_mean_tokens_of_a_program() -> None:
    """Without a sketch a call counts with its max_tokens, which is not a prediction."""
    with_slo = [request(f"p{n}", slo=deadline(60.0), max_tokens=90) for n in range(3)]
    free = [request(f"f{n}", max_tokens=100_000) for n in range(3)]
    for rows in (with_slo, with_slo + free):
        arrivals = Requests.of(rows)
        arrived = arrived_programs(step(model=MODEL, arrivals=arrivals))
        assert _mean_tokens(arrivals, arrived) == 100.0


@pytest.mark.parametrize("fairness", [0.0, 0.5])
def test_best_effort_arrivals_alone_do_not_change_the_plan(fairness: float) -> None:
    """Values and step duration are then computed from the present programs."""
    crowd = [
        running(f"{n}", slo=latency(2.0, 0.05), output_tokens=1, max_tokens=400) for n in range(20)
    ]
    crowd += [request(f"deadline {n}", slo=deadline(60.0), max_tokens=300) for n in range(20)]
    view = step(*crowd, now_s=0.5, model=MODEL, slots=64, step_tokens=8192, token_s=0.02)
    untagged = view._replace(arrivals=Requests.of([request("ended", max_tokens=90)]))
    assert calm(untagged, fairness=fairness) == calm(view, fairness=fairness)
    assert calm(view).step_tokens != view.step_tokens


def test_fairness_does_not_change_the_plan_while_all_requests_are_admitted() -> None:
    view = step(
        of_user("heavy", 1e6, "prompt", 50), of_user("light", 0.0, "other", 50), model=MODEL
    )
    assert calm(view, fairness=0.9) == calm(view)


@pytest.mark.parametrize("num_present", [0, 1])
def test_no_time_is_reserved_for_expected_work_of_a_user_who_is_ahead(num_present: int) -> None:
    """The most-served user floods the engine with work of a higher density than "last"."""
    flood = [of_user("flooder", 1e6, f"flood {number}", 20) for number in range(400)]
    best, last = of_user("light", 0.0, "best", 10), of_user("light", 0.0, "last", 200)
    view = step(best, last, *flood[:num_present], model=MODEL, slots=64, step_tokens=1000)
    flooded = view._replace(arrivals=Requests.of([best, last, *flood]), arrivals_s=1.0)
    assert "last" not in calm(flooded).run
    assert "last" in calm(flooded, fairness=0.9).run


def test_fairness_admits_the_less_served_user_if_not_all_programs_fit() -> None:
    """The machine has time for one of two programs; the heavy user's has the higher density."""
    model = StepModel(base_s=0.01, token_s=0.01)
    heavy = of_user("heavy", 1e6, "heavy", 500)
    light = of_user("light", 0.0, "light", 600)
    view = step(heavy, light, model=model, slots=8, step_tokens=1000)
    assert calm(view).run == {"heavy"}
    assert calm(view, fairness=0.9).run == {"light"}


def test_a_call_without_a_length_prediction_has_the_user_s_default_length() -> None:
    """At 10 ms a token, max_tokens cannot be reached within 5 s, and 40 tokens can."""
    call = request("call", slo=deadline(5.0), max_tokens=4000)
    with_default = call._replace(default_length=(20.0, 30.0, 35.0, 40.0, 45.0, 50.0, 60.0))
    with_sketch = with_default._replace(
        slo=deadline(5.0, length=LengthSketch((3000.0,) * len(LENGTH_LEVELS)))
    )
    model = StepModel(base_s=0.01, token_s=1e-5, sequence_s=0.0, context_s=0.0)
    other = request("other", slo=deadline(90.0), max_tokens=40)

    def first(row: RequestView, *, correct: bool = True) -> str:
        return calm(step(row, other, model=model, slots=1, token_s=0.01), correct=correct).order[0]

    assert first(with_default) == "call"
    assert first(call) == first(with_sketch) == first(with_default, correct=False) == "other"


def test_the_only_slot_is_not_given_to_overdue_best_effort_work() -> None:
    """It would take the slot in every plan; without admitted requests it runs."""
    waiting = request("waiting", arrival_s=3.0)
    in_time = running("in time", slo=deadline(200.0), computed_tokens=12, output_tokens=3)
    busy = step(waiting, in_time, now_s=100.0, model=MODEL, slots=1, token_s=0.02)
    assert calm(busy).run == {"in time"}
    alone = step(waiting, now_s=100.0, model=MODEL, slots=1, token_s=0.02)
    assert calm(alone).run == {"waiting"}


@pytest.mark.parametrize(
    ("tokens", "admitted"), [(95, "begun"), (60, "new")], ids=["a little less", "much less"]
)
def test_a_begun_program_is_displaced_only_by_a_density_above_the_gate(
    tokens: int, admitted: str
) -> None:
    """Only one of the two can be in time; the one with less work has the higher density."""
    begun = running(
        "begun",
        slo=deadline(12.0),
        prompt_tokens=1,
        computed_tokens=1,
        output_tokens=1,
        max_tokens=101,
        program_tokens=2.0,
    )
    new = request("new", slo=deadline(12.0), prompt_tokens=1, max_tokens=tokens)
    model = StepModel(base_s=0.001, token_s=0.1)
    view = step(begun, new, model=model, token_s=0.1, step_tokens=1000)
    assert calm(view).order[0] == admitted


# What each parameter changes in a plan.

SMALL = request("small", slo=deadline(90.0), prompt_tokens=1, max_tokens=1)


def test_the_price_keeps_time_for_better_work_that_arrives_again_and_again() -> None:
    """Short answers arrive that need all of the machine, so a long prompt is not admitted."""
    long = request("long", slo=deadline(60.0), prompt_tokens=50_000, max_tokens=10)
    view = step(long, SMALL, model=MODEL, token_s=0.02, step_tokens=2000, slots=1)
    short = [
        request(f"{n}", slo=deadline(20.0), prompt_tokens=1000, max_tokens=10) for n in range(800)
    ]
    busy = view._replace(arrivals=Requests.of(short), arrivals_s=60.0)
    assert is_admitted(busy, price=False)
    assert not is_admitted(busy)
    assert is_admitted(view)


@pytest.mark.parametrize("utilisation", [1.0, 0.1])
def test_admission_allocates_a_share_of_the_machine(utilisation: float) -> None:
    """2 s of prefill, and twice as much with the fixed cost of steps of 40 ms; due after 6 s."""
    big = request("big", slo=deadline(6.0), prompt_tokens=20_000, max_tokens=1)
    view = step(big, SMALL, model=MODEL, token_s=0.02, step_tokens=2000, slots=1)
    assert is_admitted(view, pace=0.04, utilisation=utilisation) is (utilisation == 1.0)


def test_a_future_is_corrected_by_what_recent_ones_became() -> None:
    """A program that still needs 60 s by its future, and 6 s by what became of such futures."""
    future = FutureWork(3, prefill_tokens=0, decode_tokens=3000, critical_s=60.0, tool_s=0.0)
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=20.0, program="p", future=future)
    call = request("call", slo=slo, max_tokens=10, future_ratio=0.1)
    view = step(call, SMALL, model=MODEL, token_s=0.02, step_tokens=2000, slots=1)
    assert is_admitted(view)
    assert not is_admitted(view, correct=False)


def test_fairness_limits_a_user_who_is_ahead_to_a_share_of_what_is_not_admitted() -> None:
    """Best-effort work of two users: each has half of the step, whoever came first."""
    users = {"ahead": 90_000.0, "behind": 0.0}
    rows = [
        running(f"{user} {n}", slo=Slo(user=user), max_tokens=9000, user_tokens=tokens)
        for user, tokens in users.items()
        for n in range(12)
    ]
    view = step(*rows, model=MODEL, slots=24, token_s=0.02, step_tokens=2000)
    all_run, limited = calm(view), calm(view, fairness=1.0)
    assert len(all_run.run) == 24
    assert {f"behind {n}" for n in range(12)} <= limited.run
    assert limited.least_steps <= limited.steps


def is_admitted(view: StepView, **parameters: float | bool) -> bool:
    """Whether the first request of a view is admitted: then it comes before SMALL, due later."""
    plan = calm(view, **parameters)  # type: ignore[arg-type]
    return plan.order.index(view.requests.request_id[0]) < plan.order.index("small")
