"""Plans of calm, beyond the laws that every policy satisfies."""

from __future__ import annotations

import pytest

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.calm.calm import CROWD, LONGEST_HOLD_S, _mean_tokens, calm
from serving.policies.calm.program_demand import arrived_programs
from serving.requests import Requests, RequestView
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.02, token_s=1e-4, sequence_s=0.0, context_s=0.0)


def test_a_late_decode_ranks_behind_a_prompt_that_is_not_late() -> None:
    """Decodes that are not late come first, because each takes a single token."""
    late = running("late", slo=deadline(1.0), computed_tokens=12, output_tokens=3)
    in_time = running("in time", slo=deadline(100.0), computed_tokens=12, output_tokens=3)
    view = step(late, in_time, request("prompt"), now_s=50.0, model=MODEL, slots=3)
    plan = calm(view, leftover=1.0)
    assert plan.order == ("in time", "prompt", "late")
    assert plan.run == {"in time", "prompt", "late"}
    assert calm(view, leftover=0.0, pace=0.025).run == {"in time", "prompt"}


@pytest.mark.parametrize(
    ("num_requests", "token_s", "least_steps", "steps"),
    [
        (1, 0.02, 4, 10),
        (5 * CROWD, 0.02, 9, 10),
        (20 * CROWD, 0.02, 24, 24),
        (90 * CROWD, 0.02, LONGEST_HOLD_S / 0.02, LONGEST_HOLD_S / 0.02),
        (1, 0.2, 2, 10),
        (5 * CROWD, 1.0, 1, 10),
    ],
)
def test_a_plan_holds_longer_with_more_requests_but_at_most_half_a_second(
    num_requests: int, token_s: float, least_steps: int, steps: int
) -> None:
    crowd = (request(f"{number}") for number in range(num_requests))
    plan = calm(step(*crowd, model=MODEL, token_s=token_s), least_steps=4, frame_steps=10)
    assert (plan.least_steps, plan.steps) == (least_steps, steps)


@pytest.mark.parametrize(
    ("ttft_s", "least_steps"), [(60.0, 4), (0.01, 1)], ids=["long", "below a step"]
)
def test_a_plan_holds_for_a_single_step_if_recent_streams_have_a_short_ttft(
    ttft_s: float, least_steps: int
) -> None:
    streams = Requests.of([request(f"{n}", slo=latency(ttft_s, 0.1)) for n in range(3)])
    view = step(request("one"), model=MODEL, token_s=0.02, arrivals=streams)
    assert calm(view, least_steps=4).least_steps == least_steps


@pytest.mark.parametrize(
    ("ttfts_s", "others", "pace", "least_steps"),
    [
        ([0.05, *[0.65] * 6, *[20.0] * 3], 0, 0.05, 3),
        ([20.0] * 4, 20, 0.2, 25),
        ([20.0] * 4, 0, 0.0, 22),
    ],
    ids=["ignores the shortest tenth", "ignores others", "counts the longest steps"],
)
def test_a_plan_holds_for_at_most_a_quarter_of_the_ttft_of_recent_streams(
    ttfts_s: list[float], others: int, pace: float, least_steps: int
) -> None:
    """A full step takes 0.22 s."""
    streams = [request(f"{n}", slo=latency(s, 10.0)) for n, s in enumerate(ttfts_s)]
    arrivals = Requests.of([*streams, *(request(f"other {n}") for n in range(others))])
    view = step(request("one"), model=MODEL, token_s=0.01, step_tokens=2000, arrivals=arrivals)
    assert calm(view, least_steps=40, pace=pace).least_steps == least_steps


def test_a_program_that_has_begun_is_given_up_if_its_shortest_answer_would_be_late() -> None:
    """100 tokens take longer than a second, but not longer than 3 s."""
    length = LengthSketch((100.0,) * len(LENGTH_LEVELS))
    other = request("other", slo=deadline(90.0), max_tokens=40)

    def first(deadline_s: float) -> str:
        slo = deadline(deadline_s, length=length)
        begun = running("begun", slo=slo, max_tokens=2000, program_tokens=10)
        return calm(step(begun, other, model=MODEL, slots=1, token_s=0.02)).order[0]

    assert (first(3.0), first(1.0)) == ("begun", "other")


def test_a_program_that_has_begun_is_judged_by_its_best_case_and_a_new_one_is_not() -> None:
    """With steps of 20 ms, 100 tokens are in time within 5 s, and the median of 1,000 is not."""
    levels = (50.0, 100.0, *[1000.0] * (len(LENGTH_LEVELS) - 2))
    slo = deadline(5.0, length=LengthSketch(levels))
    begun = running("begun", slo=slo, max_tokens=2000, program_tokens=10)
    new = request("new", slo=slo, max_tokens=2000)
    other = request("other", slo=deadline(90.0), max_tokens=40)

    def first(row: RequestView) -> str:
        return calm(step(row, other, model=MODEL, slots=1, token_s=0.02)).order[0]

    assert (first(begun), first(new)) == ("begun", "other")


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


@pytest.mark.parametrize(("num_decodes", "decoding"), [(9, 9), (11, 0)])
def test_decodes_are_not_paused_for_a_prompt_while_they_take_little_of_a_frame(
    num_decodes: int, decoding: int
) -> None:
    """Steps of 30 ms leave 10 ms; nine decodes of 0.3 ms take 2.7 ms of it, eleven take 3.3."""
    model = StepModel(base_s=0.02, token_s=3e-4, sequence_s=0.0, context_s=0.0)
    slo = deadline(900.0)
    decodes = [
        running(f"{n:02}", slo=slo, output_tokens=1, max_tokens=100) for n in range(num_decodes)
    ]
    prompt = request("prompt", slo=deadline(30.0), prompt_tokens=4000, max_tokens=100)
    plan = calm(step(*decodes, prompt, now_s=1.0, model=model, slots=64), pace=0.03)
    assert "prompt" in plan.run
    assert len(plan.run) - 1 == decoding


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
    assert "last" not in calm(flooded, leftover=0.0).run
    assert "last" in calm(flooded, leftover=0.0, fairness=0.9).run


def test_fairness_admits_the_less_served_user_if_not_all_programs_fit() -> None:
    """The machine has time for one of two programs; the heavy user's has the higher density."""
    model = StepModel(base_s=0.01, token_s=0.01)
    heavy = of_user("heavy", 1e6, "heavy", 500)
    light = of_user("light", 0.0, "light", 600)
    view = step(heavy, light, model=model, slots=8, step_tokens=1000)
    assert calm(view, leftover=0.0).run == {"heavy"}
    assert calm(view, leftover=0.0, fairness=0.9).run == {"light"}


def test_nearly_all_time_is_allocated_if_many_equal_programs_arrive() -> None:
    """The present programs demand 90% of the time: too much if few programs arrive."""
    model = StepModel(base_s=0.001, token_s=0.01)
    present = [request(f"{number:02}", slo=deadline(20.0), max_tokens=85) for number in range(20)]
    view = step(*present, model=model, slots=64, step_tokens=1000)
    equal = [request(f"ended {number}", slo=deadline(90.0), max_tokens=91) for number in range(400)]
    for arrivals, fits in ((equal, True), (equal[:1], False)):
        arrived = view._replace(arrivals=Requests.of(arrivals), arrivals_s=1e6)
        assert (calm(arrived, leftover=0.0).run == {row.request_id for row in present}) == fits


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
    ("tokens", "gate", "admitted"),
    [(90, 0.1, "begun"), (90, 0.0, "new"), (60, 0.1, "new")],
    ids=["a little less work", "without a gate", "much less work"],
)
def test_a_begun_program_is_displaced_only_by_a_density_above_the_gate(
    tokens: int, gate: float, admitted: str
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
    assert calm(view, leftover=0.0, gate=gate).run == {admitted}
