"""How long steps may be: what arrived lately decides."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.calm import calm
from serving.policies.calm.program_demand import arrived_programs, calls_of, present_programs
from serving.policies.calm.step_duration import (
    AT_EASE,
    LOSS_OF_TIME,
    MARGIN,
    MOST_SAVED,
    SAVING_SHARE,
    SHORTEST,
    StepDuration,
    backlog_duration,
    best_duration,
    saving_duration,
    step_duration_of,
)
from serving.requests import Requests, RequestView
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.01, token_s=1e-4, sequence_s=0.0, context_s=0.0)
FULL_STEP_S = 0.01 + 2000 * 1e-4


def paced(*slos: Slo, copies: int = 1, max_tokens: int = 1000) -> StepDuration:
    """After so many copies of these arrived within 10 s."""
    arrivals = Requests.of(
        [
            request(f"{copy}/{place}", slo=slo, prompt_tokens=100, max_tokens=max_tokens)
            for copy in range(copies)
            for place, slo in enumerate(slos)
        ]
    )
    view = step(model=MODEL, step_tokens=2000, arrivals=arrivals, arrivals_s=10.0)
    programs = arrived_programs(view)
    value = programs.value(arrivals, 1000.0, 0.5)
    return best_duration(view, arrivals, programs, value)


@pytest.mark.parametrize("slos", [(), (Slo(),), (deadline(1000.0),), (latency(10.0, 1.0),)])
def test_no_step_is_limited_where_no_promise_asks_for_it(slos: tuple[Slo, ...]) -> None:
    assert not paced(*slos).is_limited


def test_a_chain_sets_the_pace_that_it_can_bear() -> None:
    """1,000 tokens in 30 s bear 30 ms each, and a third more by MARGIN."""
    found = paced(deadline(30.0), copies=100)
    assert 0.03 < found.step_s <= 0.03 / MARGIN
    assert found.each_s == found.step_s
    assert found.share == pytest.approx(1.0 - 0.01 / found.step_s)


def test_a_stream_sets_the_pace_by_the_time_between_its_tokens() -> None:
    assert 0.03 < paced(latency(0.01, 0.05), copies=100).step_s <= 0.9 * 0.05


def test_a_stream_of_few_tokens_bears_what_its_first_token_may_take() -> None:
    """20 tokens of 50 ms whose first is promised in 3 s, of which 10 ms are its prompt's."""
    found = paced(latency(3.0, 0.05), copies=2000, max_tokens=20)
    assert found.step_s > 0.9 * 0.05
    assert found.step_s <= 0.9 * (0.05 + 2.99 / 20)


@pytest.mark.parametrize("slo", [deadline(30.0), latency(10.0, 0.05)])
def test_a_machine_with_time_to_spare_limits_no_step(slo: Slo) -> None:
    """Its steps are short by themselves."""
    assert not paced(slo, copies=20).is_limited
    assert not paced(slo, copies=60).is_limited
    assert paced(slo, copies=95).is_limited


def test_a_machine_without_time_to_spare_is_limited_for_what_is_foretold() -> None:
    """Steps would last 83 ms with 88% of the time used; 1,000 tokens in 56 s bear 75 ms."""
    assert paced(deadline(56.0), copies=80).is_limited
    assert not paced(deadline(66.0), copies=80).is_limited


def test_a_machine_with_time_to_spare_is_not_limited_for_a_forecast_a_third_too_high() -> None:
    """77 calls need 8.47 of 10 s: steps of 65 ms as foretold. A chain of 1,000 is in time by MARGIN
    if it has three quarters of 65 s; and no pace limits one that has three quarters of that."""
    predicted_s = 1000 * 0.01 / (1.0 - 0.847)
    assert not paced(deadline(1.1 * AT_EASE * MARGIN * predicted_s), copies=77).is_limited
    assert paced(deadline(0.9 * AT_EASE * MARGIN * predicted_s), copies=77).is_limited


def test_who_wants_short_steps_is_given_up_where_many_fill_long_ones() -> None:
    """Alone tight chains have their way; one among a hundred others has not."""
    tight, loose = deadline(15.0), deadline(200.0)
    assert paced(tight, copies=100).step_s < 0.015 / MARGIN
    crowd = paced(tight, *[loose] * 100)
    assert crowd.step_s > 0.05


def test_a_pace_is_no_longer_than_a_full_step() -> None:
    view = step(model=MODEL, step_tokens=2000)
    share = pytest.approx(1.0 - 0.01 / FULL_STEP_S)
    assert step_duration_of(view, 1e6) == StepDuration(
        pytest.approx(FULL_STEP_S), False, 0.01, share
    )
    assert step_duration_of(view, 0.02) == StepDuration(0.02, True, 0.02, 0.5)
    assert step_duration_of(view, 0.001).step_s == pytest.approx(0.0101)


def test_steps_without_a_limit_are_as_long_as_what_comes_meanwhile_makes_them() -> None:
    """100 calls need 0.1 s each: half of the machine's time in 20 s, more than all of it in 5."""
    arrivals = Requests.of(
        [request(f"{n}", slo=deadline(1e4), prompt_tokens=1, max_tokens=1000) for n in range(100)]
    )
    lasts_s = {}
    for arrivals_s in (1e9, 20.0, 5.0):
        view = step(model=MODEL, step_tokens=2000, arrivals=arrivals, arrivals_s=arrivals_s)
        found = best_duration(view, arrivals, arrived_programs(view), np.ones(100))
        assert not found.is_limited
        lasts_s[arrivals_s] = found.each_s
    assert lasts_s == {
        1e9: pytest.approx(0.01),
        20.0: pytest.approx(0.02),
        5.0: pytest.approx(FULL_STEP_S),
    }


def saving(*left_s: float, lost_per_s: float) -> float:
    """Seconds of a step with answers of which 100 tokens are to come in each of these times."""
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
    view = step(*answers, model=MODEL, step_tokens=2000)
    programs = present_programs(view, calls_of(view.requests, view.model))
    usual = step_duration_of(view, 0.1)._replace(value_per_s=lost_per_s / LOSS_OF_TIME)
    return saving_duration(view, usual, programs, np.full(len(answers), value)).step_s


def test_who_is_behind_is_saved_by_shorter_steps() -> None:
    """In 8 s its 100 tokens come in time at 80 ms each, and at 20 ms in 2 s."""
    assert saving(8.0, lost_per_s=1.0) == pytest.approx(SAVING_SHARE * 0.08)
    assert saving(8.0, 2.0, lost_per_s=1.0) == pytest.approx(SAVING_SHARE * 0.02)


def test_the_time_in_which_its_prompt_is_read_is_not_for_its_tokens() -> None:
    """5,000 tokens more at 0.1 ms each leave 7.5 s of 8 for 100 of the answer."""
    call = running("call", slo=deadline(8.0), prompt_tokens=5001, computed_tokens=0, max_tokens=100)
    assert saving_among(call) == pytest.approx(SAVING_SHARE * 0.075)
    assert saving_among(call, value=0.0) == pytest.approx(0.1)


def test_the_least_behind_are_saved_first_and_no_more_than_can_be_weighed() -> None:
    """The one in a greater hurry is one too many."""
    assert saving(*[8.0] * MOST_SAVED, 2.0, lost_per_s=1.0) == pytest.approx(SAVING_SHARE * 0.08)


@pytest.mark.parametrize("left_s", [(), (10.6,), (1e4,), (1.0,), (1e-3,)])
def test_nobody_is_saved_who_is_in_time_or_who_cannot_be(left_s: tuple[float, ...]) -> None:
    assert saving(*left_s, lost_per_s=1.0) == pytest.approx(0.1)


def test_who_costs_more_than_it_is_worth_is_given_up() -> None:
    """85 steps more cost 0.85 s of the machine for the one, and some 60 ms for the other."""
    assert saving(2.0, lost_per_s=1.1) == pytest.approx(SAVING_SHARE * 0.02)
    assert saving(2.0, lost_per_s=1.2) == pytest.approx(0.1)
    assert saving(2.0, 9.9, lost_per_s=1.2) == pytest.approx(SAVING_SHARE * 0.099)


def test_steps_short_enough_for_one_serve_all_who_are_behind() -> None:
    """In its 2 s the second costs the difference to the steps of the first, (1/19 - 1/76) / ms."""
    assert saving(8.0, 2.0, lost_per_s=1.26) == pytest.approx(SAVING_SHARE * 0.02)
    assert saving(8.0, 2.0, lost_per_s=1.27) == pytest.approx(SAVING_SHARE * 0.08)


def beside_a_backlog(
    *slos: Slo, ahead_s: float = 0.0, affords_s: float = 0.0, backlog_s: float = 19.0
) -> StepDuration:
    """For ten steps, with answers of 100 tokens, their next due so long after a TBT has passed.

    Full steps take 0.21 s and leave 0.2 of it.
    """
    answers = [running(f"{n}", slo=slo, max_tokens=100) for n, slo in enumerate(slos)]
    view = step(*answers, model=MODEL, step_tokens=2000)
    programs = present_programs(view, calls_of(view.requests, view.model))
    no_limit = step_duration_of(view, 1.0)._replace(affords_s=affords_s)
    assert not no_limit.is_limited
    return backlog_duration(
        view,
        no_limit,
        programs,
        np.ones(len(answers), dtype=bool),
        backlog_s=backlog_s,
        due_s=view.requests.tbt_s[programs.first] + ahead_s,
        num_steps=10,
    )


TIGHT, LOOSE = latency(1.0, 0.05), latency(1.0, 0.1)


def test_the_tightest_stream_limits_steps_that_no_pace_limits() -> None:
    found = beside_a_backlog(LOOSE, TIGHT)
    assert (found.step_s, found.is_limited, found.each_s) == (pytest.approx(0.045), True, 0.01)
    assert beside_a_backlog(LOOSE, TIGHT, ahead_s=0.2).step_s == pytest.approx(0.9 * 0.07)


def test_no_stream_limits_steps_that_is_far_ahead_or_asks_for_more_than_there_is() -> None:
    assert not beside_a_backlog(TIGHT, ahead_s=2.0).is_limited
    assert not beside_a_backlog(TIGHT, affords_s=0.046).is_limited
    assert beside_a_backlog(LOOSE, TIGHT, affords_s=0.046).step_s == pytest.approx(0.09)
    assert not beside_a_backlog(TIGHT, affords_s=np.inf).is_limited
    assert not beside_a_backlog().is_limited


@pytest.mark.parametrize(
    ("due_s", "backlog_s", "limit_s"),
    [
        (8.0, 19.0, 0.08),  # 21 s of full steps for its 100 tokens
        (8.0, 2.0, None),  # a tenth of them, and short ones then
        (2.8, 2.0, 0.028),  # 2.1 s of full ones, and 0.9 s for the other 90 tokens
        (3.2, 2.0, None),
        (30.0, 1e9, None),
    ],
)
def test_an_answer_limits_steps_that_would_be_full_for_too_long(
    due_s: float, backlog_s: float, limit_s: float | None
) -> None:
    found = beside_a_backlog(deadline(due_s), backlog_s=backlog_s)
    assert found.is_limited == (limit_s is not None)
    if limit_s is not None:
        assert found.step_s == pytest.approx(SAVING_SHARE * limit_s)


def test_a_machine_can_afford_the_steps_in_which_what_arrived_still_fits() -> None:
    """20 calls need 2.198 s of 8.5: so much of a step is for them, and the rest its fixed cost."""
    assert paced(deadline(1e4), copies=20).affords_s == pytest.approx(0.01 / (1 - 2.198 / 8.5))
    assert paced(deadline(1e4), copies=100).affords_s == np.inf
    assert paced().affords_s == pytest.approx(SHORTEST * 0.0101)


def test_a_machine_that_is_not_measured_yet_saves_nobody() -> None:
    late = running("late", slo=deadline(1e-9), output_tokens=10)
    view = step(late, model=StepModel(0.0, 0.0, 0.0, 0.0), token_s=0.0)
    programs = present_programs(view, calls_of(view.requests, view.model))
    usual = step_duration_of(view, 0.1)
    assert saving_duration(view, usual, programs, np.ones(1)) == usual


def test_a_machine_that_is_not_measured_yet_has_no_limit() -> None:
    view = step(model=StepModel(0.0, 0.0, 0.0, 0.0), arrivals=Requests.of([request("one")]))
    programs = arrived_programs(view)
    assert not best_duration(view, view.arrivals, programs, programs.tokens).is_limited


def test_where_nothing_arrived_lately_those_who_are_here_set_the_pace() -> None:
    streams = [running(f"{n}", slo=latency(10.0, 0.05), max_tokens=900) for n in range(10)]
    budget = calm(step(*streams, now_s=30.0, model=MODEL, step_tokens=2000, slots=10)).step_tokens
    assert budget is not None
    assert MODEL.seconds(new_tokens=budget, num_decodes=0, decode_context_tokens=0) <= 0.045
