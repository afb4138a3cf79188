"""Simulated annealing of the waiting line: more promises kept in less time, within bounds."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.policies.baselines.annealing import annealed, annealing, best_start, moved
from serving.policies.baselines.annealing_predictor import BatchPrediction
from serving.requests import RequestView
from serving.slo import Slo
from serving.view import StepModel, StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

SECOND = StepModel(base_s=1.0)
"""A step takes a second, however many are in it; so does reading a prompt."""

NOTHING_KEPT_AT_FIRST = BatchPrediction(
    exec_s=np.array([10.0, 11.0, 9.0, 1.0]),
    slack_s=np.array([0.01, 13.01, 5.01, 0.01]),
    slots=1,
    num_held=2,
    held_s=4.0,
    rest_kept=0,
    rest_s=0.0,
)
"""And on the way to the best order there are worse ones."""


def waiting(request_id: str, *, slo: Slo, tokens: int = 10, **changes: Any) -> RequestView:
    """It takes one second for its prompt and one for each token."""
    return request(request_id, slo=slo, max_tokens=tokens, **changes)


def line(*requests: RequestView, **changes: Any) -> StepView:
    return step(*requests, **{"slots": 1, "model": SECOND} | changes)


def naive_score(forecast: BatchPrediction, order: tuple[int, ...]) -> float:
    """Equations 2, 3, 7 and 11 written down again: one request after the other."""
    slots, held = forecast.slots, forecast.num_held
    kept, seconds, in_slots_s = forecast.rest_kept, forecast.rest_s, forecast.held_s
    ahead_s = 0.0
    for job in order:
        wait_s = 0.0
        if held < slots:
            held, in_slots_s = held + 1, in_slots_s + forecast.exec_s[job]
        else:
            mean_s = in_slots_s / held
            wait_s = 2 * mean_s / (slots + 1) + (held - slots) * mean_s / slots + ahead_s / slots
            ahead_s += forecast.exec_s[job]
        kept += wait_s <= forecast.slack_s[job]
        seconds += wait_s + forecast.exec_s[job]
    return kept / seconds


@st.composite
def forecasts(draw: st.DrawFn, max_jobs: int = 6) -> BatchPrediction:
    numbers = st.lists(st.integers(1, 20), min_size=max_jobs, max_size=max_jobs)
    size = draw(st.integers(1, max_jobs))
    num_held = draw(st.integers(0, 5))
    return BatchPrediction(
        exec_s=np.array(draw(numbers)[:size], dtype=float),
        slack_s=np.array(draw(numbers)[:size], dtype=float) - 0.99,
        slots=draw(st.sampled_from([1, 2, 4])),
        num_held=num_held,
        held_s=float(num_held * draw(st.integers(1, 9))),
        rest_kept=draw(st.integers(0, 3)),
        rest_s=float(draw(st.integers(0, 30))),
    )


@law
@given(forecasts(), st.randoms(use_true_random=False))
def test_the_score_is_promises_over_latencies(forecast: BatchPrediction, random: Any) -> None:
    order = list(range(len(forecast.exec_s)))
    random.shuffle(order)
    assert forecast.score(np.array(order)) == pytest.approx(naive_score(forecast, tuple(order)))


@law
@given(forecasts(), st.integers(0, 99), st.integers(0, 60))
def test_annealing_never_ends_worse_than_it_began(
    forecast: BatchPrediction, seed: int, iterations: int
) -> None:
    start = np.arange(len(forecast.exec_s))
    found = annealed(forecast, start, len(start), iterations, 0.01, seed)
    assert sorted(found) == sorted(start)
    assert forecast.score(found) >= forecast.score(start) * (1 - 1e-9)


@law
@given(forecasts(max_jobs=5), st.integers(0, 99))
@example(NOTHING_KEPT_AT_FIRST, 0)
def test_with_time_enough_annealing_finds_the_best_order(
    forecast: BatchPrediction, seed: int
) -> None:
    start = np.arange(len(forecast.exec_s))
    best = max(naive_score(forecast, order) for order in permutations(range(len(start))))
    found = annealed(forecast, start, len(start), 3000, 5.0, seed)
    assert forecast.score(found) == pytest.approx(best)


@law
@given(st.integers(2, 9), st.integers(0, 2), st.integers(0, 8), st.integers(0, 8))
def test_a_move_squeezes_in_delays_or_exchanges(size: int, move: int, one: int, other: int) -> None:
    order = np.arange(size)
    one, other = one % size, other % size
    low, high = min(one, other), max(one, other)
    expected = order.tolist()
    if move == 0:
        expected.insert(low, expected.pop(high))
    elif move == 1:
        expected.insert(high, expected.pop(low))
    else:
        expected[low], expected[high] = expected[high], expected[low]
    assert moved(order, move, one, other).tolist() == expected
    assert order.tolist() == list(range(size)), "the former order is untouched"


def test_only_the_window_is_annealed() -> None:
    forecast = BatchPrediction(
        exec_s=np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0]),
        slack_s=np.zeros(6),
        slots=1,
        num_held=1,
        held_s=0.0,
        rest_kept=0,
        rest_s=0.0,
    )
    found = annealed(forecast, np.arange(6), 3, 500, 0.01, 0)
    assert found.tolist() == [2, 1, 0, 3, 4, 5]


def test_where_all_promises_can_be_kept_the_quickest_comes_first() -> None:
    """The least sum of latencies, with nothing left to gain: no search, whatever the seed."""
    view = line(
        waiting("long", slo=deadline(100.0), tokens=20),
        waiting("short", slo=deadline(100.0), tokens=2),
        waiting("middle", slo=deadline(100.0), tokens=5),
    )
    for seed in range(3):
        assert annealing(view, seed=seed).order == ("short", "middle", "long")


def test_a_promise_is_kept_at_the_cost_of_latency() -> None:
    """Eleven seconds are promised to who takes eleven; the quicker one has a hundred."""
    view = line(
        waiting("quick", slo=deadline(100.0), tokens=5),
        waiting("tight", slo=deadline(11.0), tokens=10),
    )
    assert annealing(view).order == ("tight", "quick")


def test_who_cannot_be_in_time_does_not_delay_who_can() -> None:
    view = line(
        waiting("lost", slo=deadline(10.0), tokens=10),
        waiting("tight", slo=deadline(13.0), tokens=12),
    )
    assert annealing(view).order == ("tight", "lost")


def test_a_stream_is_promised_its_first_token_and_its_pace() -> None:
    """It is read in a second. Two seconds leave it one to wait, and the other takes eleven."""
    stream = waiting("stream", slo=latency(2.0, 1.0), tokens=30)
    view = line(waiting("other", slo=deadline(60.0), tokens=10), stream)
    assert annealing(view).order == ("stream", "other")
    too_quick = stream._replace(slo=latency(2.0, 0.9))
    assert annealing(line(view.requests[0], too_quick)).order == ("other", "stream")


def test_who_has_a_slot_keeps_it_while_it_is_feasible() -> None:
    holder = running("holder", slo=deadline(500.0), max_tokens=100)
    urgent = waiting("urgent", slo=deadline(11.0))
    assert annealing(line(holder, urgent)).run == {"holder"}
    late = holder._replace(slo=deadline(1.0))
    urgent = urgent._replace(arrival_s=5.0)
    assert annealing(line(late, urgent, now_s=5.0)).run == {"urgent"}


def test_a_smaller_batch_runs_where_the_large_one_would_break_promises() -> None:
    """A step takes 5 s and one more for each in it: ten tokens in 76 s leave room for two."""
    crowded = StepModel(base_s=5.0, sequence_s=1.0)
    requests = [waiting(str(index), slo=deadline(76.0), tokens=10) for index in range(4)]
    plan = annealing(step(*requests, slots=4, model=crowded))
    assert len(plan.run) == 2
    patient = [waiting(str(index), slo=deadline(500.0), tokens=10) for index in range(4)]
    assert len(annealing(step(*patient, slots=4, model=crowded)).run) == 4


def test_a_stage_of_a_run_is_promised_its_own_deadline() -> None:
    stage = waiting("stage", slo=compound(11.0, final_s=500.0))
    view = line(waiting("quick", slo=deadline(100.0), tokens=5), stage)
    assert annealing(view).order == ("stage", "quick")


def test_the_same_seed_gives_the_same_plan_and_another_one_may_not() -> None:
    rng = np.random.default_rng(7)
    view = line(
        *(
            waiting(str(index), slo=deadline(float(rng.integers(5, 300))), tokens=int(tokens))
            for index, tokens in enumerate(rng.integers(1, 60, size=60))
        )
    )
    plans = [annealing(view, seed=seed) for seed in (0, 0, 1, 2)]
    assert plans[0] == plans[1]
    assert len({plan.order for plan in plans}) > 1


def test_the_better_of_both_starts_is_taken() -> None:
    """Sorted by latency, the long one is too late; by arrival, both are in time."""
    view = line(
        waiting("a long one", slo=deadline(21.0), tokens=20),
        waiting("b short one", slo=deadline(50.0), tokens=2),
    )
    nobody, both = np.array([], dtype=int), np.array([0, 1])
    _, order = best_start(view, nobody, both, 1, 0.5)
    assert order.tolist() == [0, 1]
    patient = line(waiting("a long one", slo=deadline(50.0), tokens=20), view.requests[1])
    _, order = best_start(patient, nobody, both, 1, 0.5)
    assert order.tolist() == [1, 0]
