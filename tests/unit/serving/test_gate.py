"""The preemption gate: a place changes hands only where it pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.gate import MIN_GAIN, exchange_batch, exchange_each, stall_s
from serving.requests import Floats, Ints
from serving.view import StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import request, running, step

Case = tuple[StepView, list[int], list[int], Floats]


def places(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def machine(*held: int, waiting: int = 0, prefill_token_s: float = 0.0) -> StepView:
    """Requests that hold so many tokens each, and some that wait."""
    rows = [running(str(n), computed_tokens=tokens) for n, tokens in enumerate(held)]
    rows += [request(f"w{n}") for n in range(waiting)]
    return step(*rows, prefill_token_s=prefill_token_s)


@pytest.mark.parametrize(("free", "seconds"), [(0, 1.0), (250, 0.75), (1000, 0.0)])
def test_what_is_likely_to_be_found_again_is_not_recomputed(free: int, seconds: float) -> None:
    view = machine(100, prefill_token_s=0.01)._replace(kv_tokens=1000, free_kv_tokens=free)
    assert stall_s(view, places(0), prefix_caching=True) == pytest.approx([seconds])
    assert stall_s(view, places(0), prefix_caching=False) == pytest.approx([1.0])


def test_a_batch_changes_only_as_a_whole() -> None:
    """The best of the newcomers alone would pay; together they are worth less than a tenth more."""
    view = machine(10, 10, waiting=2)
    worth = np.array([10.0, 10.0, 13.0, 8.9])
    run = exchange_batch(view, places(0, 1), places(2, 3), worth, frame_s=1.0)
    assert run.tolist() == [0, 1]
    worth[3] = 9.1
    run = exchange_batch(view, places(0, 1), places(2, 3), worth, frame_s=1.0)
    assert run.tolist() == [2, 3]


def test_each_place_changes_by_itself() -> None:
    view = machine(10, 10, waiting=2)
    worth = np.array([10.0, 10.0, 13.0, 10.9])
    run = exchange_each(view, places(0, 1), places(2, 3), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [0, 2]
    worth[3] = 11.1
    run = exchange_each(view, places(0, 1), places(2, 3), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [2, 3]


def test_who_costs_less_to_recompute_gives_way_first() -> None:
    """Equal in worth; a frame wins 3 and the stall costs 2 tokens/s for each of 1000 tokens."""
    view = machine(1000, 10, waiting=1, prefill_token_s=0.01)
    worth = np.array([10.0, 10.0, 13.0])
    run = exchange_each(view, places(0, 1), places(2, 1), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [0, 1]  # it would have to evict the dear one
    run = exchange_each(view, places(0, 1), places(2, 0), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [0, 2]


def test_empty_places_are_taken_before_anybody_is_evicted() -> None:
    view = machine(10, waiting=3)
    worth = np.array([1.0, 5.0, 7.0, 6.0])
    run = exchange_each(view, places(0), places(2, 3, 1), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [1, 2, 3]
    worth[1] = 1.05
    run = exchange_each(view, places(0), places(2, 3, 1), worth, frame_s=1.0)
    assert sorted(run.tolist()) == [0, 2, 3]


@st.composite
def exchanges(draw: st.DrawFn) -> Case:
    """Some run, and some are wanted, of requests that are worth anything."""
    held = draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    num_waiting = draw(st.integers(0, 5))
    view = machine(*held, waiting=num_waiting, prefill_token_s=draw(st.sampled_from([0, 0.01])))
    count = len(held) + num_waiting
    size = draw(st.integers(len(held), count))
    wanted = draw(st.permutations(range(count)))[:size]
    worth = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    return view, list(range(len(held))), wanted, np.array(worth, dtype=np.float64)


def prices(view: StepView, size: int, worth: Floats) -> Floats:
    """What a newcomer must be worth to take each request's place for a second."""
    stall = view.requests.computed_tokens * view.prefill_token_s * size / view.token_s
    price: Floats = np.maximum((1 + MIN_GAIN) * worth, worth + stall)
    return price


@law
@given(case=exchanges())
def test_no_exchange_that_pays_is_left_and_none_was_made_that_does_not(case: Case) -> None:
    view, runs, wanted, worth = case
    result = exchange_each(view, places(*runs), places(*wanted), worth, frame_s=1.0).tolist()
    assert len(result) == len(set(result)) == len(wanted)
    assert set(result) <= set(runs) | set(wanted)
    assert set(runs) & set(wanted) <= set(result)
    price = prices(view, len(wanted), worth)
    evicted = sorted(price[place] for place in runs if place not in result)
    came = sorted((worth[place] for place in result if place not in runs), reverse=True)
    num_free = len(wanted) - len(runs)
    paid = came[num_free:]
    assert all(one > other for one, other in zip(paid, sorted(evicted), strict=True))
    left_out = [worth[place] for place in wanted if place not in result]
    could_go = [price[place] for place in runs if place in result and place not in wanted]
    if left_out and could_go:
        assert max(left_out) <= min(could_go)


@law
@given(case=exchanges())
def test_a_batch_is_the_wanted_one_or_keeps_all_that_run(case: Case) -> None:
    view, runs, wanted, worth = case
    result = exchange_batch(view, places(*runs), places(*wanted), worth, frame_s=1.0).tolist()
    assert result == wanted or set(runs) <= set(result)
    assert len(result) == len(set(result)) == len(wanted)
