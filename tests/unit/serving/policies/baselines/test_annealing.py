"""Simulated annealing of the queue: more met SLOs per second of latency."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.policies.baselines.annealing import annealed, annealing, best_start, neighbour
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

ONE_SECOND = StepModel(base_s=1.0)
"""Every step takes a second, and every prompt is computed in one step."""

NO_SLO_MET_AT_FIRST = BatchPrediction(
    exec_s=np.array([10.0, 11.0, 9.0, 1.0]),
    slack_s=np.array([0.01, 13.01, 5.01, 0.01]),
    slots=1,
    num_held=2,
    held_s=4.0,
    rest_met=0,
    rest_s=0.0,
)
"""The path from the first order to the best one leads through worse ones."""


def waiting(request_id: str, *, slo: Slo, tokens: int = 10, **changes: Any) -> RequestView:
    """A request that takes one second for its prompt and one for each token."""
    return request(request_id, slo=slo, max_tokens=tokens, **changes)


def view_of(*requests: RequestView, **changes: Any) -> StepView:
    return step(*requests, **{"slots": 1, "model": ONE_SECOND} | changes)


def naive_score(prediction: BatchPrediction, order: tuple[int, ...]) -> float:
    """A second implementation of equations 2, 3, 7 and 11, request by request."""
    slots, num_held = prediction.slots, prediction.num_held
    num_met, seconds, held_s = prediction.rest_met, prediction.rest_s, prediction.held_s
    ahead_s = 0.0
    for job in order:
        wait_s = 0.0
        if num_held < slots:
            num_held, held_s = num_held + 1, held_s + prediction.exec_s[job]
        else:
            mean_s = held_s / num_held
            wait_s = 2 * mean_s / (slots + 1) + (num_held - slots) * mean_s / slots
            wait_s += ahead_s / slots
            ahead_s += prediction.exec_s[job]
        num_met += wait_s <= prediction.slack_s[job]
        seconds += wait_s + prediction.exec_s[job]
    return num_met / seconds


@st.composite
def predictions(draw: st.DrawFn, max_jobs: int = 6) -> BatchPrediction:
    numbers = st.lists(st.integers(1, 20), min_size=max_jobs, max_size=max_jobs)
    size = draw(st.integers(1, max_jobs))
    num_held = draw(st.integers(0, 5))
    return BatchPrediction(
        exec_s=np.array(draw(numbers)[:size], dtype=float),
        slack_s=np.array(draw(numbers)[:size], dtype=float) - 0.99,
        slots=draw(st.sampled_from([1, 2, 4])),
        num_held=num_held,
        held_s=float(num_held * draw(st.integers(1, 9))),
        rest_met=draw(st.integers(0, 3)),
        rest_s=float(draw(st.integers(0, 30))),
    )


@law
@given(predictions(), st.randoms(use_true_random=False))
def test_the_score_is_met_slos_over_the_sum_of_latencies(
    prediction: BatchPrediction, random: Any
) -> None:
    order = list(range(len(prediction.exec_s)))
    random.shuffle(order)
    assert prediction.score(np.array(order)) == pytest.approx(naive_score(prediction, tuple(order)))


@law
@given(predictions(), st.integers(0, 99), st.integers(0, 60))
def test_annealing_never_lowers_the_score(
    prediction: BatchPrediction, seed: int, iterations: int
) -> None:
    start = np.arange(len(prediction.exec_s))
    order = annealed(prediction, start, len(start), iterations, 0.01, seed)
    assert sorted(order) == sorted(start)
    assert prediction.score(order) >= prediction.score(start) * (1 - 1e-9)


@law
@given(predictions(max_jobs=5), st.integers(0, 99))
@example(NO_SLO_MET_AT_FIRST, 0)
def test_annealing_with_many_iterations_finds_the_best_order(
    prediction: BatchPrediction, seed: int
) -> None:
    start = np.arange(len(prediction.exec_s))
    best = max(naive_score(prediction, each) for each in permutations(range(len(start))))
    order = annealed(prediction, start, len(start), 3000, 5.0, seed)
    assert prediction.score(order) == pytest.approx(best)


@law
@given(st.integers(2, 9), st.integers(0, 2), st.integers(0, 8), st.integers(0, 8))
def test_a_neighbour_has_one_request_earlier_or_later_or_two_exchanged(
    size: int, move: int, first: int, second: int
) -> None:
    order = np.arange(size)
    first, second = first % size, second % size
    low, high = min(first, second), max(first, second)
    expected = order.tolist()
    if move == 0:
        expected.insert(low, expected.pop(high))
    elif move == 1:
        expected.insert(high, expected.pop(low))
    else:
        expected[low], expected[high] = expected[high], expected[low]
    assert neighbour(order, move, first, second).tolist() == expected
    assert order.tolist() == list(range(size)), "the argument must not change"


def test_only_the_window_is_annealed() -> None:
    prediction = BatchPrediction(
        exec_s=np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0]),
        slack_s=np.zeros(6),
        slots=1,
        num_held=1,
        held_s=0.0,
        rest_met=0,
        rest_s=0.0,
    )
    order = annealed(prediction, np.arange(6), 3, 500, 0.01, 0)
    assert order.tolist() == [2, 1, 0, 3, 4, 5]


def test_if_all_slos_can_be_met_the_shortest_request_comes_first() -> None:
    """That order has the smallest sum of latencies, so there is no search for any seed."""
    view = view_of(
        waiting("long", slo=deadline(100.0), tokens=20),
        waiting("short", slo=deadline(100.0), tokens=2),
        waiting("middle", slo=deadline(100.0), tokens=5),
    )
    for seed in range(3):
        assert annealing(view, seed=seed).order == ("short", "middle", "long")


def test_an_slo_is_met_at_the_cost_of_latency() -> None:
    """The longer request takes 11 s of its 11 s; the shorter one has 100 s."""
    view = view_of(
        waiting("short", slo=deadline(100.0), tokens=5),
        waiting("tight", slo=deadline(11.0), tokens=10),
    )
    assert annealing(view).order == ("tight", "short")


def test_a_request_that_cannot_be_in_time_does_not_delay_one_that_can() -> None:
    view = view_of(
        waiting("hopeless", slo=deadline(10.0), tokens=10),
        waiting("tight", slo=deadline(13.0), tokens=12),
    )
    assert annealing(view).order == ("tight", "hopeless")


def test_a_stream_meets_its_slo_by_its_ttft_and_its_tbt() -> None:
    """Its prefill takes 1 s of the TTFT of 2 s, and the other request takes 11 s."""
    stream = waiting("stream", slo=latency(2.0, 1.0), tokens=30)
    view = view_of(waiting("other", slo=deadline(60.0), tokens=10), stream)
    assert annealing(view).order == ("stream", "other")
    impossible = stream._replace(slo=latency(2.0, 0.9))
    assert annealing(view_of(view.requests[0], impossible)).order == ("other", "stream")


def test_a_request_keeps_its_slot_while_it_is_feasible() -> None:
    holder = running("holder", slo=deadline(500.0), max_tokens=100)
    urgent = waiting("urgent", slo=deadline(11.0))
    assert annealing(view_of(holder, urgent)).run == {"holder"}
    late = holder._replace(slo=deadline(1.0))
    urgent = urgent._replace(arrival_s=5.0)
    assert annealing(view_of(late, urgent, now_s=5.0)).run == {"urgent"}


def test_a_smaller_batch_runs_if_the_largest_one_would_miss_slos() -> None:
    """A step takes 5 s and 1 s for each request: ten tokens in 76 s allow a batch of two."""
    crowded = StepModel(base_s=5.0, sequence_s=1.0)
    requests = [waiting(str(index), slo=deadline(76.0), tokens=10) for index in range(4)]
    plan = annealing(step(*requests, slots=4, model=crowded))
    assert len(plan.run) == 2
    patient = [waiting(str(index), slo=deadline(500.0), tokens=10) for index in range(4)]
    assert len(annealing(step(*patient, slots=4, model=crowded)).run) == 4


def test_a_compound_request_has_its_stage_s_sub_deadline() -> None:
    stage = waiting("stage", slo=compound(11.0, final_s=500.0))
    view = view_of(waiting("short", slo=deadline(100.0), tokens=5), stage)
    assert annealing(view).order == ("stage", "short")


def test_the_same_seed_gives_the_same_plan_and_some_other_seed_does_not() -> None:
    rng = np.random.default_rng(7)
    view = view_of(
        *(
            waiting(str(index), slo=deadline(float(rng.integers(5, 300))), tokens=int(tokens))
            for index, tokens in enumerate(rng.integers(1, 60, size=60))
        )
    )
    plans = [annealing(view, seed=seed) for seed in (0, 0, 1, 2)]
    assert plans[0] == plans[1]
    assert len({plan.order for plan in plans}) > 1


def test_the_better_of_the_two_starts_is_taken() -> None:
    """By latency, the long request is late; by arrival, both are in time."""
    view = view_of(
        waiting("a long one", slo=deadline(21.0), tokens=20),
        waiting("b short one", slo=deadline(50.0), tokens=2),
    )
    none, both = np.array([], dtype=int), np.array([0, 1])
    _, order = best_start(view, none, both, 1, 0.5)
    assert order.tolist() == [0, 1]
    patient = view_of(waiting("a long one", slo=deadline(50.0), tokens=20), view.requests[1])
    _, order = best_start(patient, none, both, 1, 0.5)
    assert order.tolist() == [1, 0]
