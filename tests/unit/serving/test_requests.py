"""Requests: the same as rows and as columns, whatever callers claim."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import (
    COLUMNS,
    KINDS,
    MOST,
    ON_LATE,
    Numbering,
    Requests,
    RequestState,
    RequestView,
)
from serving.slo import FutureWork, OnLate, Slo, SloKind
from serving.view import StepView
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import compound, deadline, latency, request

HUGE = 1e308


@law
@given(step_views())
def test_rows_survive_as_columns(view: StepView) -> None:
    rows = list(view.requests)
    assert list(Requests.of(rows)) == rows
    assert all(isinstance(row.state, RequestState) for row in rows)


@law
@given(step_views(hostile=False))
def test_each_column_holds_what_its_row_says(view: StepView) -> None:
    requests = view.requests
    for place, row in enumerate(requests):
        slo = row.slo
        assert requests.deadline_s[place] == row.deadline_s
        assert requests.final_s[place] == row.final_s
        assert requests.waiting_s[place] == (math.inf if slo.waiting_s is None else slo.waiting_s)
        assert KINDS[requests.kind[place]] is slo.kind
        assert ON_LATE[requests.on_late[place]] is slo.on_late
        for name in ("ttft_s", "tbt_s", "weight"):
            assert getattr(requests, name)[place] == getattr(slo, name)
        for name in ("stage", "stage_calls"):
            assert getattr(requests, name)[place] == min(getattr(slo, name), MOST)
        known = slo.length is not None
        length = requests.length[place].tolist()
        assert np.isnan(length).all() or known
        assert slo.length is None or tuple(length) == slo.length.tokens


@law
@given(step_views())
def test_equal_numbers_mean_equal_programs_and_users(view: StepView) -> None:
    requests = view.requests
    for one, other in combinations(range(len(requests)), 2):
        first, second = requests[one].slo, requests[other].slo
        same_program = bool(first.program) and all(
            getattr(first, name) == getattr(second, name) for name in ("program", "user")
        )
        same_program &= SloKind.LATENCY not in (first.kind, second.kind)
        assert (requests.program[one] == requests.program[other]) == same_program
        assert (requests.user[one] == requests.user[other]) == (first.user == second.user)


@pytest.mark.parametrize("name", ["a", "\0a", "alone a", "named c"])
def test_no_name_makes_a_program_of_two_strangers(name: str) -> None:
    """Who names no program is one of its own, however another's is called."""
    rows = [request("a"), request("b", slo=Slo(program=name)), request("c", slo=Slo(program="c"))]
    assert len(set(Requests.of(rows).program.tolist())) == 3


def test_programs_of_two_users_are_two_however_they_are_called() -> None:
    rows = [
        request(user + name, slo=Slo(user=user, program=name)) for user in "ab" for name in "xy"
    ]
    assert len(set(Requests.of(rows).program.tolist())) == 4


@law
@given(st.lists(st.text(max_size=3)))
def test_numbers_are_given_in_the_order_of_asking(names: list[str]) -> None:
    numbers = Numbering()
    first_asked = list(dict.fromkeys(names))
    assert [numbers.of(name) for name in names] == [first_asked.index(name) for name in names]


@law
@given(step_views(), st.floats(0.01, 0.99))
def test_what_is_still_to_come_is_the_same_by_row_and_by_column(
    view: StepView, level: float
) -> None:
    by_row = [each.remaining_tokens(level) for each in view.requests]
    assert view.requests.remaining_tokens(level).tolist() == pytest.approx(by_row, rel=1e-9)


def test_huge_promises_and_predictions_stay_numbers_that_can_be_added() -> None:
    most = dict.fromkeys(("ttft_s", "tbt_s", "waiting_s", "weight"), HUGE)
    rows = [
        request(
            "deadline",
            slo=deadline(
                HUGE,
                stage=2**60,
                stage_calls=2**60,
                length=LengthSketch((HUGE,) * len(LENGTH_LEVELS)),
                future=FutureWork(*[HUGE] * len(FutureWork._fields)),
                **most,
            ),
            arrival_s=1e9,
        ),
        request("compound", slo=compound(HUGE, final_s=HUGE), arrival_s=1e9),
        request("latency", slo=latency(HUGE, HUGE)),
    ]
    requests = Requests.of(rows)
    for name in COLUMNS:
        column = getattr(requests, name)
        if column.dtype != object:
            with np.errstate(over="raise"):
                total = np.nansum(np.where(np.isinf(column), 0, column) * 1e3)
            assert np.isfinite(total), name
    assert list(requests) == rows


def test_nobody_is_a_view_too() -> None:
    requests = Requests.of([])
    assert list(requests) == []
    assert requests.length.shape == (0, len(LENGTH_LEVELS))
    assert requests.remaining_tokens().shape == (0,)


def test_rows_are_read_by_place_and_by_slice() -> None:
    rows = [request(name, arrival_s=float(place)) for place, name in enumerate("abcd")]
    requests = Requests.of(rows)
    assert requests[2] == rows[2]
    assert requests[-1] == rows[-1]
    assert requests[1:3] == rows[1:3]
    assert repr(rows[0]) in repr(requests)
    with pytest.raises(IndexError):
        requests[4]


def test_a_row_says_in_plain_numbers_what_its_columns_hold() -> None:
    """What is kept or printed of a row must not hold on to the arrays."""
    row: RequestView = Requests.of([request("a", slo=Slo(kind=SloKind.LATENCY))])[0]
    assert row.slo.on_late is OnLate.BEST_EFFORT
    assert {type(value) for value in row} == {str, Slo, float, int, RequestState, tuple}
    assert {type(level) for level in row.default_length} == {float}


@law
@given(step_views(), st.data())
def test_what_is_taken_is_each_column_in_the_new_order(view: StepView, data: st.DataObject) -> None:
    whole = view.requests
    places = data.draw(st.permutations(range(len(whole))), label="places")
    some = np.array(places[: len(places) // 2], dtype=np.int64)
    taken = whole.take(np.array(places, dtype=np.int64))
    assert list(taken) == [whole[place] for place in places]
    assert len(taken) == len(places)
    again = taken.take(np.arange(len(some)))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name)[some])


def test_what_is_written_to_a_taken_column_leaves_the_whole_as_it_was() -> None:
    whole = Requests.of([request("a", arrival_s=1.0), request("b", arrival_s=2.0)])
    taken = whole.take(np.array([1, 0]))
    taken.arrival_s += 10.0
    assert taken.arrival_s.tolist() == [12.0, 11.0]
    assert whole.arrival_s.tolist() == [1.0, 2.0]


def test_a_column_that_there_is_not_cannot_be_taken() -> None:
    with pytest.raises(AttributeError, match="colour"):
        _ = Requests.of([request("a")]).take(np.array([0])).colour  # type: ignore[attr-defined]
