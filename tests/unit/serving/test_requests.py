"""Requests: rows and columns hold the same values, for any values that callers send."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.urgency import next_token_due_s
from serving.requests import (
    COLUMNS,
    KINDS,
    MAX_VALUE,
    ON_LATE,
    Numbering,
    Requests,
    RequestState,
    RequestView,
    begin_second_part,
    new_columns,
    write_slo,
)
from serving.slo import FutureWork, OnLate, Slo, SloKind
from serving.view import StepView
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import compound, deadline, latency, request, step

HUGE = 1e308


@law
@given(step_views())
def test_rows_survive_conversion_to_columns_and_back(view: StepView) -> None:
    rows = list(view.requests)
    assert list(Requests.of(rows)) == rows
    assert all(isinstance(row.state, RequestState) for row in rows)


@law
@given(step_views(hostile=False))
def test_each_column_holds_the_value_of_its_row(view: StepView) -> None:
    requests = view.requests
    for index, row in enumerate(requests):
        slo = row.slo
        assert requests.deadline_s[index] == row.deadline_s
        assert requests.final_s[index] == row.final_s
        assert requests.waiting_s[index] == (math.inf if slo.waiting_s is None else slo.waiting_s)
        assert KINDS[requests.kind[index]] is slo.kind
        assert ON_LATE[requests.on_late[index]] is slo.on_late
        for name in ("ttft_s", "tbt_s", "weight"):
            assert getattr(requests, name)[index] == getattr(slo, name)
        for name in ("stage", "stage_calls"):
            assert getattr(requests, name)[index] == min(getattr(slo, name), MAX_VALUE)
        known = slo.length is not None
        length = requests.length[index].tolist()
        assert np.isnan(length).all() or known
        assert slo.length is None or tuple(length) == slo.length.tokens


@law
@given(step_views())
def test_equal_numbers_mean_equal_programs_and_users(view: StepView) -> None:
    requests = view.requests
    for left, right in combinations(range(len(requests)), 2):
        first, second = requests[left].slo, requests[right].slo
        same_program = bool(first.program) and all(
            getattr(first, name) == getattr(second, name) for name in ("program", "user")
        )
        same_program &= SloKind.LATENCY not in (first.kind, second.kind)
        assert (requests.program[left] == requests.program[right]) == same_program
        assert (requests.user[left] == requests.user[right]) == (first.user == second.user)


@pytest.mark.parametrize("name", ["a", "\0a", "alone a", "named c"])
def test_no_program_name_joins_a_request_without_a_program_name(name: str) -> None:
    """A request without a program name is its own program, whatever names other programs have."""
    rows = [request("a"), request("b", slo=Slo(program=name)), request("c", slo=Slo(program="c"))]
    assert len(set(Requests.of(rows).program.tolist())) == 3


def test_programs_of_two_users_differ_even_with_the_same_name() -> None:
    rows = [
        request(user + name, slo=Slo(user=user, program=name)) for user in "ab" for name in "xy"
    ]
    assert len(set(Requests.of(rows).program.tolist())) == 4


@law
@given(st.lists(st.text(max_size=3)))
def test_names_are_numbered_in_the_order_of_their_first_lookup(names: list[str]) -> None:
    numbers = Numbering()
    first_seen = list(dict.fromkeys(names))
    assert [numbers.of(name) for name in names] == [first_seen.index(name) for name in names]


@law
@given(step_views(), st.floats(0.01, 0.99))
def test_the_remaining_output_is_the_same_by_row_and_by_column(
    view: StepView, level: float
) -> None:
    by_row = [each.remaining_tokens(level) for each in view.requests]
    assert view.requests.remaining_tokens(level).tolist() == pytest.approx(by_row, rel=1e-9)


def test_sums_of_huge_slo_targets_and_predictions_do_not_overflow() -> None:
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


def test_an_empty_view_is_valid() -> None:
    requests = Requests.of([])
    assert list(requests) == []
    assert requests.length.shape == (0, len(LENGTH_LEVELS))
    assert requests.remaining_tokens().shape == (0,)


def test_rows_are_read_by_index_and_by_slice() -> None:
    rows = [request(name, arrival_s=float(index)) for index, name in enumerate("abcd")]
    requests = Requests.of(rows)
    assert requests[2] == rows[2]
    assert requests[-1] == rows[-1]
    assert requests[1:3] == rows[1:3]
    assert repr(rows[0]) in repr(requests)
    with pytest.raises(IndexError):
        requests[4]


def test_a_row_holds_plain_python_values() -> None:
    """A row that is kept or printed must hold no reference to the arrays."""
    row: RequestView = Requests.of([request("a", slo=Slo(kind=SloKind.LATENCY))])[0]
    assert row.slo.on_late is OnLate.BEST_EFFORT
    assert {type(value) for value in row} == {str, Slo, float, int, RequestState, tuple}
    assert {type(level) for level in row.default_length} == {float}


@law
@given(step_views(), st.data())
def test_take_puts_each_column_in_the_new_order(view: StepView, data: st.DataObject) -> None:
    whole = view.requests
    indices = data.draw(st.permutations(range(len(whole))), label="indices")
    some = np.array(indices[: len(indices) // 2], dtype=np.int64)
    taken = whole.take(np.array(indices, dtype=np.int64))
    assert list(taken) == [whole[index] for index in indices]
    assert len(taken) == len(indices)
    again = taken.take(np.arange(len(some)))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name)[some])


def test_writing_to_a_taken_column_does_not_change_the_original() -> None:
    whole = Requests.of([request("a", arrival_s=1.0), request("b", arrival_s=2.0)])
    taken = whole.take(np.array([1, 0]))
    taken.arrival_s += 10.0
    assert taken.arrival_s.tolist() == [12.0, 11.0]
    assert whole.arrival_s.tolist() == [1.0, 2.0]


def test_an_unknown_column_cannot_be_taken() -> None:
    with pytest.raises(AttributeError, match="colour"):
        _ = Requests.of([request("a")]).take(np.array([0])).colour  # type: ignore[attr-defined]


@law
@given(
    st.sampled_from([SloKind.DEADLINE, SloKind.COMPOUND, SloKind.LATENCY]),
    st.floats(0.1, 100.0),
    st.floats(0.01, 5.0),
    st.integers(1, 3000),
    st.integers(0, 500),
)
def test_each_token_of_a_second_part_is_due_when_its_slo_says(
    kind: SloKind, due_s: float, then_tbt_s: float, generated: int, more: int
) -> None:
    is_stream = kind is SloKind.LATENCY
    slo = Slo(
        kind=kind,
        deadline_s=None if is_stream else due_s,
        ttft_s=due_s if is_stream else 5.0,
        tbt_s=0.05,
        then_token=8,
        then_tbt_s=then_tbt_s,
        then_length=LengthSketch((10.0,) * len(LENGTH_LEVELS)),
    )
    columns = new_columns(1)
    write_slo(columns, 0, "a", 100.0, slo)
    begin_second_part(columns, 0, slo, generated=generated)
    columns["output_tokens"][:] = generated + more
    columns["max_tokens"][:] = 10_000
    view = step()._replace(now_s=0.0, requests=Requests(columns))
    first_due_s = 100.0 + due_s + (generated * 0.05 if is_stream else 0.0)
    assert next_token_due_s(view)[0] == pytest.approx(first_due_s + more * then_tbt_s)
    assert columns["length"][0].tolist() == [generated + 10.0] * len(LENGTH_LEVELS)
    assert columns["kind"][0] == KINDS.index(SloKind.LATENCY)


def test_an_answer_that_is_all_a_stream_goes_on_from_its_first_token() -> None:
    length = LengthSketch((40.0,) * len(LENGTH_LEVELS))
    slo = compound(4.0, final_s=9.0, program="p", length=length, then_tbt_s=0.5)
    columns = new_columns(1)
    write_slo(columns, 0, "a", 100.0, slo)
    assert columns["length"][0].tolist() == [1.0] * len(LENGTH_LEVELS)
    assert columns["future"][0].tolist() == [0.0, 0.0, 40.0, 0.0, 0.0, 0.0]
    begin_second_part(columns, 0, slo, generated=1)
    columns["output_tokens"][:], columns["max_tokens"][:] = 3, 100
    view = step()._replace(now_s=0.0, requests=Requests(columns))
    assert next_token_due_s(view)[0] == pytest.approx(109.0 + 3 * 0.5)
    assert columns["length"][0].tolist() == [40.0] * len(LENGTH_LEVELS)


def test_what_follows_a_deadline_within_an_answer_is_work_of_the_future() -> None:
    length, then = (LengthSketch((tokens,) * len(LENGTH_LEVELS)) for tokens in (40.0, 10.0))
    parts = {"length": length, "then_token": 8, "then_tbt_s": 1.0, "then_length": then}
    thinking, paced = Requests.of(
        [request("a", slo=deadline(5.0, **parts)), request("b", slo=latency(1.0, 0.1, **parts))]
    )
    columns = Requests.of([thinking, paced])
    assert columns.length[:, 0].tolist() == [40.0, 50.0]
    assert columns.future[0].tolist() == [0.0, 0.0, 10.0, 0.0, 0.0, 0.0]
    assert np.isnan(columns.future[1]).all()
    for row, expected in zip((thinking, paced), columns.remaining_tokens(), strict=True):
        assert row.remaining_tokens() == expected
