"""The duration of steps, as decided by recent arrivals, backlogs and programs that are behind."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving.policies.calm.calm import UTILISATION, calm
from serving.policies.calm.program_demand import arrived_programs, calls_of, present_programs
from serving.policies.calm.step_duration import (
    BEARABLE_SHARE,
    LOST_TIME_COST,
    MAX_SAVED,
    PLANNING_MARGIN,
    SHORTEST_FACTOR,
    StepDuration,
    affordable_duration,
    backlog_duration,
    best_duration,
    fullest_batch_s,
    saving_duration,
    step_duration_of,
)
from serving.requests import Requests, RequestView
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.01, token_s=1e-4, sequence_s=0.0, context_s=0.0)
FULL_STEP_S = 0.01 + 2000 * 1e-4


def duration_after(
    *slos: Slo, copies: int = 1, max_tokens: int = 1000, slots: int = 1000
) -> StepDuration:
    """The duration after this many copies of requests with these SLOs arrived within 10 s."""
    arrivals = Requests.of(
        [
            request(f"{copy}/{index}", slo=slo, prompt_tokens=100, max_tokens=max_tokens)
            for copy in range(copies)
            for index, slo in enumerate(slos)
        ]
    )
    view = step(model=MODEL, step_tokens=2000, arrivals=arrivals, arrivals_s=10.0, slots=slots)
    programs = arrived_programs(view)
    value = programs.value(arrivals, 1000.0, 0.5)
    return best_duration(view, arrivals, programs, value, utilisation=UTILISATION)


@pytest.mark.parametrize("slos", [(), (Slo(),), (deadline(1000.0),)])
def test_steps_are_not_limited_if_no_slo_is_at_risk(slos: tuple[Slo, ...]) -> None:
    assert not duration_after(*slos).is_limited


def test_a_long_chain_limits_steps_to_what_it_can_bear() -> None:
    """1,000 tokens in 30 s bear 30 ms each, and a third more with PLANNING_MARGIN."""
    duration = duration_after(deadline(30.0), copies=100)
    assert 0.03 < duration.step_s <= 0.03 / PLANNING_MARGIN
    assert duration.expected_s == duration.step_s
    assert duration.useful_share == pytest.approx(1.0 - 0.01 / duration.step_s)


@pytest.mark.parametrize("num_decodes", [1, 2, 5])
def test_a_limit_beyond_the_longest_steps_that_slots_and_memory_allow_gains_no_time(
    num_decodes: int,
) -> None:
    """Each of 100 calls prefills 99 tokens and decodes 1,000: 110 us for each decode in a step."""
    longest_s = 0.01 + num_decodes * (1.0 + 0.099) * 1e-4
    duration = duration_after(deadline(1e4), copies=100, slots=num_decodes)
    assert duration.useful_share == pytest.approx(1.0 - 0.01 / longest_s)
    arrivals = Requests.of(
        [request(f"{n}", slo=deadline(1e4), prompt_tokens=100, max_tokens=1000) for n in range(9)]
    )
    memory = step(model=MODEL, arrivals=arrivals, slots=1000, kv_tokens=num_decodes * 600)
    programs = arrived_programs(memory)
    assert fullest_batch_s(memory, programs, programs.tokens > 0) == pytest.approx(longest_s)


def test_without_work_of_value_there_is_no_longest_batch() -> None:
    view = step(model=MODEL, arrivals=Requests.of([request("one")]))
    assert fullest_batch_s(view, arrived_programs(view), np.array([False])) == math.inf


def first_token_s(duration_s: float, prompt_s: float, decode_load: float) -> float:
    """Mean seconds until the end of a prefill that has all time that decodes leave."""
    share = 1.0 - MODEL.base_s / duration_s - decode_load
    return duration_s / 2 + prompt_s / share if share > 0 else math.inf


@pytest.mark.parametrize("copies", [1, 20, 40, 70])
def test_steps_are_as_short_as_is_best_for_the_first_tokens_of_streams(copies: int) -> None:
    """Each stream has 9.9 ms of prefill and 100 ms of decodes in 10 s."""
    duration = duration_after(latency(10.0, 1.0), copies=copies)
    at_best_s = min(
        first_token_s(duration_s, 0.0099, 0.01 * copies)
        for duration_s in np.geomspace(0.01, 0.5, 2000)
    )
    assert first_token_s(duration.step_s, 0.0099, 0.01 * copies) == pytest.approx(at_best_s)


def test_steps_are_not_shorter_for_first_tokens_than_keeps_up_with_the_arrivals() -> None:
    """90 streams demand 9.9 of 10 s, which only steps of a second would leave."""
    assert not duration_after(latency(10.0, 1.0), copies=90).is_limited


def test_a_stream_limits_steps_by_its_tbt() -> None:
    assert 0.03 < duration_after(latency(0.01, 0.05), copies=100).step_s <= 0.9 * 0.05


def test_a_short_stream_spreads_its_ttft_over_its_tokens() -> None:
    """20 tokens with a TBT of 50 ms and a TTFT of 3 s, 10 ms of which are prefill."""
    duration = duration_after(latency(3.0, 0.05), copies=2000, max_tokens=20)
    assert duration.step_s > 0.9 * 0.05
    assert duration.step_s <= 0.9 * (0.05 + 2.99 / 20)


def test_steps_are_not_limited_while_the_machine_has_spare_time() -> None:
    """Unlimited steps are short enough then."""
    assert not duration_after(deadline(30.0), copies=20).is_limited
    assert not duration_after(deadline(30.0), copies=50).is_limited
    assert duration_after(deadline(30.0), copies=95).is_limited


def test_steps_are_limited_without_spare_time() -> None:
    """Unlimited steps take 83 ms with 88% of the time used; 1,000 tokens in 56 s bear 75 ms."""
    assert duration_after(deadline(56.0), copies=80).is_limited
    assert not duration_after(deadline(66.0), copies=80).is_limited


def test_one_tight_chain_does_not_limit_steps_that_many_loose_ones_fill() -> None:
    """100 tight chains limit steps; one among a hundred loose ones does not."""
    tight, loose = deadline(15.0), deadline(200.0)
    assert duration_after(tight, copies=100).step_s < 0.015 / PLANNING_MARGIN
    crowd = duration_after(tight, *[loose] * 100)
    assert crowd.step_s > 0.05


def test_a_duration_is_clamped_to_an_empty_and_a_full_step() -> None:
    view = step(model=MODEL, step_tokens=2000)
    share = pytest.approx(1.0 - 0.01 / FULL_STEP_S)
    assert step_duration_of(view, 1e6) == StepDuration(
        pytest.approx(FULL_STEP_S), False, 0.01, share
    )
    assert step_duration_of(view, 0.02) == StepDuration(0.02, True, 0.02, 0.5, frame_s=0.02)
    assert step_duration_of(view, 0.001).step_s == pytest.approx(0.0101)


def test_unlimited_steps_take_the_time_to_compute_what_arrives_meanwhile() -> None:
    """100 calls demand 0.1 s each: half of the machine's time in 20 s, more than all in 5 s."""
    arrivals = Requests.of(
        [request(f"{n}", slo=deadline(1e4), prompt_tokens=1, max_tokens=1000) for n in range(100)]
    )
    expected_s = {}
    for arrivals_s in (1e9, 20.0, 5.0):
        view = step(model=MODEL, step_tokens=2000, arrivals=arrivals, arrivals_s=arrivals_s)
        duration = best_duration(
            view, arrivals, arrived_programs(view), np.ones(100), utilisation=UTILISATION
        )
        assert not duration.is_limited
        expected_s[arrivals_s] = duration.expected_s
    assert expected_s == {
        1e9: pytest.approx(0.01),
        20.0: pytest.approx(0.02),
        5.0: pytest.approx(FULL_STEP_S),
    }


@pytest.mark.parametrize(
    ("num_present", "steps_s"),
    [(1, 0.0102), (40, 0.018), (300, 0.05)],
    ids=["one", "all have a slot", "more than have a slot"],
)
def test_a_step_lasts_at_least_as_long_as_the_decodes_that_are_present(
    num_present: int, steps_s: float
) -> None:
    """Hardly anything arrived, but 0.2 ms a decode add up, of at most 200 with a slot."""
    model = MODEL._replace(sequence_s=1e-4, context_s=0.0)
    answers = [running(f"{n}", slo=deadline(1e4), max_tokens=100) for n in range(num_present)]
    view = step(*answers, model=model, step_tokens=2000, slots=200, arrivals_s=1e9)
    view = view._replace(arrivals=view.requests)
    programs = arrived_programs(view)
    duration = best_duration(
        view, view.arrivals, programs, np.ones(num_present), utilisation=UTILISATION
    )
    assert duration.expected_s == pytest.approx(steps_s)


def test_short_calls_have_time_for_the_step_in_progress_too() -> None:
    """Ten tokens take 7.5 of the longest steps by PLANNING_MARGIN, and the wait one more."""
    step_s = duration_after(deadline(0.85), copies=1000, max_tokens=10).step_s
    assert 0.8 * 0.85 < step_s * (PLANNING_MARGIN * 10 + 1) <= 0.85


def saving(*left_s: float, lost_per_s: float) -> float:
    """Step duration for answers with 100 remaining tokens and these times left."""
    answers = [
        running(
            f"{n}",
            slo=deadline(end_s),
            prompt_tokens=500,
            output_tokens=100,
            computed_tokens=599,
            max_tokens=200,
        )
        for n, end_s in enumerate(left_s)
    ]
    return saving_among(*answers, lost_per_s=lost_per_s)


def saving_among(*answers: RequestView, value: float = 1.0, lost_per_s: float = 1.0) -> float:
    """Step duration for these answers, if steps of 0.1 s were chosen before."""
    view = step(*answers, model=MODEL, step_tokens=2000)
    programs = present_programs(view, calls_of(view.requests, view.model))
    values = np.full(len(answers), value)
    demand_s = values * LOST_TIME_COST / lost_per_s
    return saving_duration(view, step_duration_of(view, 0.1), programs, values, demand_s).step_s


def test_programs_that_are_behind_are_saved_by_shorter_steps() -> None:
    """100 tokens are in time within 8 s with steps of 80 ms, and within 2 s with 20 ms."""
    assert saving(8.0, lost_per_s=1.0) == pytest.approx(BEARABLE_SHARE * 0.08)
    assert saving(8.0, 2.0, lost_per_s=1.0) == pytest.approx(BEARABLE_SHARE * 0.02)


def test_the_time_for_prefill_is_not_available_for_decodes() -> None:
    """5,000 prompt tokens of 0.1 ms each leave 7.5 of 8 s for 100 output tokens."""
    call = running("call", slo=deadline(8.0), prompt_tokens=5001, computed_tokens=0, max_tokens=100)
    assert saving_among(call) == pytest.approx(BEARABLE_SHARE * 0.075)
    assert saving_among(call, value=0.0) == pytest.approx(0.1)


def test_at_most_max_saved_programs_are_considered_the_least_late_first() -> None:
    """The program with 2 s left is one too many."""
    assert saving(*[8.0] * MAX_SAVED, 2.0, lost_per_s=1.0) == pytest.approx(BEARABLE_SHARE * 0.08)


@pytest.mark.parametrize("left_s", [(), (11.2,), (1e4,), (1.0,), (1e-3,)])
def test_programs_that_are_in_time_or_hopeless_do_not_shorten_steps(
    left_s: tuple[float, ...],
) -> None:
    assert saving(*left_s, lost_per_s=1.0) == pytest.approx(0.1)


def test_steps_are_not_shortened_for_a_program_that_costs_more_than_its_value() -> None:
    """91 additional steps cost 0.91 s of machine time for the first, and 12 for the second."""
    assert saving(2.0, lost_per_s=1.09) == pytest.approx(BEARABLE_SHARE * 0.02)
    assert saving(2.0, lost_per_s=1.10) == pytest.approx(0.1)
    assert saving(2.0, 9.9, lost_per_s=1.3) == pytest.approx(BEARABLE_SHARE * 0.099)


def test_a_program_without_value_makes_lost_time_no_cheaper() -> None:
    ends_s = (2.0, 1e4)
    answers = [running(f"{s}", slo=deadline(s), output_tokens=100, max_tokens=200) for s in ends_s]
    view = step(*answers, model=MODEL, step_tokens=2000)
    programs = present_programs(view, calls_of(view.requests, view.model))
    chosen, value = step_duration_of(view, 0.1), np.array([1.0, 0.0])
    demand_s = np.array([LOST_TIME_COST / 1.10, 1e3])
    assert saving_duration(view, chosen, programs, value, demand_s) == chosen


def test_steps_short_enough_for_one_program_save_all_that_are_less_behind() -> None:
    """The second program adds only the difference to the first one's steps, during its 2 s."""
    assert saving(8.0, 2.0, lost_per_s=1.19) == pytest.approx(BEARABLE_SHARE * 0.02)
    assert saving(8.0, 2.0, lost_per_s=1.21) == pytest.approx(BEARABLE_SHARE * 0.08)


def beside_a_backlog(
    *slos: Slo, ahead_s: float = 0.0, affordable_s: float = 0.0, backlog_s: float = 19.0
) -> StepDuration:
    """The duration for ten steps beside a backlog, with one answer of 100 tokens for each SLO.

    Full steps take 0.21 s, of which 0.2 s are useful.

    Args:
        ahead_s: the next token of a stream is due this long after one TBT.
    """
    answers = [running(f"{n}", slo=slo, max_tokens=100) for n, slo in enumerate(slos)]
    view = step(*answers, model=MODEL, step_tokens=2000)
    programs = present_programs(view, calls_of(view.requests, view.model))
    no_limit = step_duration_of(view, 1.0)
    assert not no_limit.is_limited
    return backlog_duration(
        view,
        no_limit,
        programs,
        np.ones(len(answers), dtype=bool),
        affordable_s=affordable_s,
        backlog_s=backlog_s,
        due_s=view.requests.tbt_s[programs.first] + ahead_s,
        num_steps=10,
    )


TIGHT, LOOSE = latency(1.0, 0.05), latency(1.0, 0.1)


def test_the_tightest_stream_limits_steps_beside_a_backlog() -> None:
    duration = beside_a_backlog(LOOSE, TIGHT)
    assert duration.is_limited
    assert (duration.step_s, duration.expected_s) == (pytest.approx(0.045), 0.01)
    assert beside_a_backlog(LOOSE, TIGHT, ahead_s=0.2).step_s == pytest.approx(0.9 * 0.07)


def test_a_stream_that_is_far_ahead_or_needs_unaffordable_steps_does_not_limit_steps() -> None:
    assert not beside_a_backlog(TIGHT, ahead_s=2.0).is_limited
    assert not beside_a_backlog(TIGHT, affordable_s=0.046).is_limited
    assert beside_a_backlog(LOOSE, TIGHT, affordable_s=0.046).step_s == pytest.approx(0.09)
    assert not beside_a_backlog(TIGHT, affordable_s=np.inf).is_limited
    assert not beside_a_backlog().is_limited


@pytest.mark.parametrize(
    ("due_s", "backlog_s", "limit_s"),
    [
        (8.0, 19.0, 0.08),  # its 100 tokens would take 21 s of full steps
        (8.0, 2.0, None),  # 2.1 s of full steps, then short ones
        (2.8, 2.0, 0.028),  # 2.1 s of full steps, and 0.9 s for the other 90 tokens
        (3.2, 2.0, None),
        (30.0, 1e9, None),
    ],
)
def test_an_answer_limits_steps_if_a_backlog_would_make_it_late(
    due_s: float, backlog_s: float, limit_s: float | None
) -> None:
    duration = beside_a_backlog(deadline(due_s), backlog_s=backlog_s)
    assert duration.is_limited == (limit_s is not None)
    if limit_s is not None:
        assert duration.step_s == pytest.approx(BEARABLE_SHARE * limit_s)


def test_the_affordable_duration_leaves_just_the_share_that_is_needed() -> None:
    view = step(model=MODEL, step_tokens=2000)
    assert affordable_duration(view, 0.75) == pytest.approx(0.04)
    assert affordable_duration(view, 0.0) == pytest.approx(SHORTEST_FACTOR * 0.0101)
    assert affordable_duration(view, 1.0) == affordable_duration(view, 1.5) == np.inf


def test_a_step_model_of_zeros_does_not_shorten_steps() -> None:
    late = running("late", slo=deadline(1e-9), output_tokens=10)
    view = step(late, model=StepModel(0.0, 0.0, 0.0, 0.0), token_s=0.0)
    programs = present_programs(view, calls_of(view.requests, view.model))
    chosen = step_duration_of(view, 0.1)
    assert saving_duration(view, chosen, programs, np.ones(1), np.ones(1)) == chosen


def test_a_step_model_of_zeros_does_not_limit_steps() -> None:
    view = step(model=StepModel(0.0, 0.0, 0.0, 0.0), arrivals=Requests.of([request("one")]))
    programs = arrived_programs(view)
    duration = best_duration(
        view, view.arrivals, programs, programs.tokens, utilisation=UTILISATION
    )
    assert not duration.is_limited


def test_without_recent_arrivals_the_present_programs_decide_the_duration() -> None:
    streams = [running(f"{n}", slo=latency(10.0, 0.05), max_tokens=900) for n in range(10)]
    budget = calm(step(*streams, now_s=30.0, model=MODEL, step_tokens=2000, slots=10)).step_tokens
    assert budget is not None
    assert MODEL.seconds(new_tokens=budget, num_decodes=0, decode_context_tokens=0) <= 0.045
