"""Goodput: what a program earned, by each definition."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.goodput import (
    GOODPUTS,
    CallOutcome,
    Goodput,
    ProgramOutcome,
    end_due_s,
    met,
    requests,
    service_gain,
    tokens,
    weighted,
)
from serving.slo import SloKind
from tests.strategies import law

every_definition = pytest.mark.parametrize("goodput", GOODPUTS.values(), ids=GOODPUTS.keys())
seconds = st.floats(0, 50)
DEADLINE_KINDS = (SloKind.DEADLINE, SloKind.COMPOUND)


def call(*token_times_s: float, **changes: Any) -> CallOutcome:
    """A call submitted at 0 with 10 prompt tokens that delivered all its output."""
    values: dict[str, Any] = {
        "submitted_s": 0.0,
        "prompt_tokens": 10,
        "output_tokens": max(len(token_times_s), 1),
        "token_times_s": token_times_s,
        "ended": "dropped" not in changes,
    }
    return CallOutcome(**(values | changes))


def program(*stages: tuple[CallOutcome, ...], **changes: Any) -> ProgramOutcome:
    """A stream that arrived at 0, with a TTFT of 2 s and a TBT of 0.5 s."""
    values: dict[str, Any] = {
        "program_id": "p",
        "kind": SloKind.LATENCY,
        "arrival_s": 0.0,
        "ttft_s": 2.0,
        "tbt_s": 0.5,
        "calls": stages,
        "ended_s": max((each.token_times_s[-1] for stage in stages for each in stage), default=0)
        if all(each.ended for stage in stages for each in stage)
        else None,
    }
    return ProgramOutcome(**(values | changes))


def due(deadline_s: float, *stages: tuple[CallOutcome, ...], **changes: Any) -> ProgramOutcome:
    return program(*stages, **{"kind": SloKind.DEADLINE, "deadline_s": deadline_s} | changes)


@st.composite
def calls(draw: st.DrawFn, arrival_s: float) -> CallOutcome:
    submitted_s = arrival_s + draw(seconds)
    times_s = tuple(sorted(submitted_s + after for after in draw(st.lists(seconds, max_size=6))))
    ended = bool(times_s) and draw(st.booleans())
    return CallOutcome(
        submitted_s=submitted_s,
        prompt_tokens=draw(st.integers(0, 20)),
        output_tokens=len(times_s) if ended else len(times_s) + draw(st.integers(1, 5)),
        token_times_s=times_s,
        ended=ended,
        dropped=not ended and draw(st.booleans()),
    )


@st.composite
def programs(draw: st.DrawFn, *kinds: SloKind) -> ProgramOutcome:
    """Any outcome of a program of one of these kinds; without arguments of any kind."""
    kind = draw(st.sampled_from(kinds or tuple(SloKind)))
    arrival_s = draw(seconds)
    stages = draw(st.lists(st.lists(calls(arrival_s), min_size=1, max_size=3), max_size=3))
    last_s = max((max(c.token_times_s, default=0.0) for stage in stages for c in stage), default=0)
    has_ended = all(c.ended for stage in stages for c in stage) and draw(st.booleans())
    needs_deadline = kind in DEADLINE_KINDS
    return ProgramOutcome(
        program_id=draw(st.text("ab", max_size=2)),
        kind=kind,
        user=draw(st.sampled_from(["", "ann", "bob"])),
        weight=draw(st.floats(0.1, 10)),
        arrival_s=arrival_s,
        ttft_s=draw(seconds),
        tbt_s=draw(seconds),
        deadline_s=draw(st.floats(0.1, 100) if needs_deadline else st.none() | st.floats(0.1, 100)),
        calls=tuple(map(tuple, stages)),
        ended_s=max(last_s, arrival_s) + draw(seconds) if has_ended else None,
    )


def sped_up(outcome: CallOutcome, share: float) -> CallOutcome:
    """The same call with the time from its submission to each token multiplied by `share`."""
    submitted_s, times_s = outcome.submitted_s, outcome.token_times_s
    sooner = tuple(submitted_s + share * (time_s - submitted_s) for time_s in times_s)
    return replace(outcome, token_times_s=tuple(map(min, sooner, times_s)))


def earlier(outcome: ProgramOutcome, share: float) -> ProgramOutcome:
    """The same program with every call sped up, which ends with its last token."""
    stages = tuple(tuple(sped_up(each, share) for each in stage) for stage in outcome.calls)
    last_s = max((t for stage in stages for c in stage for t in c.token_times_s), default=0.0)
    ended_s = None if outcome.ended_s is None else max(last_s, outcome.arrival_s)
    return replace(outcome, calls=stages, ended_s=ended_s)


# Latency kind


def test_the_first_token_is_due_by_ttft_and_each_later_one_a_tbt_later() -> None:
    assert tokens(program((call(2.0, 2.5, 3.0),))) == 3  # each exactly on time
    assert tokens(program((call(2.1, 2.5, 3.1),))) == 1  # a late token does not make the next late


def test_a_late_stream_earns_again_once_it_has_caught_up() -> None:
    assert tokens(program((call(3.0, 3.0, 3.0, 3.0),))) == 2  # due by 2, 2.5, 3, 3.5


def test_a_token_that_is_late_only_by_a_rounding_error_is_on_time() -> None:
    stream = program((call(0.1 + 0.2, 0.1 + 0.2 + 0.1),), ttft_s=0.3, tbt_s=0.1)
    assert 0.1 + 0.2 > 0.3
    assert tokens(stream) == 2


def test_tokens_that_a_stream_delivered_in_time_before_it_was_dropped_count() -> None:
    dropped = program((call(1.0, 2.0, output_tokens=9, dropped=True),))
    assert tokens(dropped) == 2
    assert not met(dropped)


def test_a_later_call_of_a_stream_is_timed_from_its_own_submission() -> None:
    stages = ((call(1.0),), (call(11.0, 12.6, submitted_s=10.0),))
    assert tokens(program(*stages)) == 2  # 12.6 is after 10 + 2 + 0.5


def test_a_first_call_is_timed_from_its_programs_arrival() -> None:
    assert tokens(program((call(2.5, submitted_s=1.0),))) == 0


@pytest.mark.parametrize(("num_late", "is_met"), [(0, True), (1, True), (2, False)])
def test_a_stream_meets_its_slo_with_nine_tenths_of_its_tokens_in_time(
    num_late: int, is_met: bool
) -> None:
    times = [0.0] * (10 - num_late) + [6.9] * num_late  # the last two are due by 6 and 6.5
    assert met(program((call(*times),))) is is_met


@pytest.mark.parametrize(("ended_s", "is_met"), [(6.5, True), (7.0, True), (7.1, False)])
def test_a_stream_must_end_within_a_tbt_after_its_last_token_is_due(
    ended_s: float, is_met: bool
) -> None:
    """Its last token may be late, but not without limit."""
    stream = program((call(*[0.0] * 9, ended_s),))
    assert met(stream) is is_met
    assert tokens(stream) == (10 if ended_s == 6.5 else 9)


def test_a_stream_with_a_late_first_token_has_missed_its_slo() -> None:
    assert not met(program((call(2.1, *[2.1] * 99),)))


def test_a_stream_that_has_not_ended_has_not_met_its_slo() -> None:
    assert not met(program((call(1.0, output_tokens=2, ended=False),)))
    assert not met(program((call(1.0),), ended_s=None))  # another call may follow


# Deadline, compound, best effort


@pytest.mark.parametrize("kind", DEADLINE_KINDS)
def test_a_program_with_a_deadline_earns_all_input_and_output_or_nothing(kind: SloKind) -> None:
    stages = ((call(1.0, 2.0), call(3.0)), (call(8.0, submitted_s=4.0),))
    all_tokens = 3 * 10 + 4
    assert tokens(due(8.0, *stages, kind=kind)) == all_tokens  # exactly on time
    assert tokens(due(7.9, *stages, kind=kind)) == 0
    assert tokens(due(9.0, *stages, kind=kind, ended_s=9.1)) == 0  # a tool ran until 9.1 s


def test_a_deadline_counts_from_arrival() -> None:
    assert tokens(due(2.0, (call(5.0, submitted_s=3.0),), arrival_s=3.0)) == 11


def test_a_deadline_program_with_a_dropped_call_earns_nothing() -> None:
    incomplete = due(9.0, (call(1.0), call(dropped=True)), ended_s=2.0)
    assert (tokens(incomplete), requests(incomplete), service_gain(incomplete)) == (0, 0, 0)


def test_best_effort_earns_only_with_a_default_deadline() -> None:
    free = program((call(1.0),), kind=SloKind.BEST_EFFORT)
    assert (tokens(free), requests(free), service_gain(free)) == (0, 0, 0)
    assert tokens(replace(free, deadline_s=1.0)) == 11
    assert tokens(replace(free, deadline_s=0.9)) == 0


def test_weighted_goodput_is_tokens_times_the_weight() -> None:
    assert weighted(due(1.0, (call(1.0),), weight=2.5)) == 2.5 * 11


# Service gain


def test_service_gain_halves_when_a_deadline_is_missed_by_its_own_length() -> None:
    full = 10 + 2 * 2
    assert service_gain(due(4.0, (call(1.0, 4.0),))) == full
    assert service_gain(due(2.0, (call(1.0, 4.0),))) == full / 2
    assert service_gain(due(2.0, (call(1.0, 4.0),)), exponent=2) == full / 4


def test_service_gain_of_a_stream_decays_token_by_token() -> None:
    # Due by 2, 2.5 and 3. The first token halves the input too: (10 + 2) / 2 + 2 * 2.5 / 5 + 2
    assert service_gain(program((call(4.0, 5.0, 5.0),))) == pytest.approx(6 + 1 + 2 * 3 / 5)


@law
@given(programs(SloKind.LATENCY))
def test_with_an_infinite_exponent_a_streams_gain_is_its_token_goodput(
    outcome: ProgramOutcome,
) -> None:
    gain = service_gain(outcome, input_weight=0, output_weight=1, exponent=math.inf)
    assert gain == tokens(outcome)


# Laws


@every_definition
@law
@given(outcome=programs())
def test_goodput_never_exceeds_the_delivered_tokens(
    goodput: Goodput, outcome: ProgramOutcome
) -> None:
    started = [c for c in outcome.each_call() if c.token_times_s]
    delivered = sum(c.prompt_tokens + len(c.token_times_s) for c in started)
    bound: dict[Goodput, float] = {
        requests: 1,
        weighted: outcome.weight * delivered,
        service_gain: 2 * delivered,
    }
    assert 0 <= goodput(outcome) <= bound.get(goodput, delivered) + 1e-6


@every_definition
@law
@given(outcome=programs(), share=st.floats(0, 1))
def test_an_earlier_delivery_never_lowers_goodput(
    goodput: Goodput, outcome: ProgramOutcome, share: float
) -> None:
    assert goodput(earlier(outcome, share)) >= goodput(outcome) - 1e-6


@pytest.mark.parametrize("goodput", [tokens, requests, weighted])
@law
@given(outcome=programs(*DEADLINE_KINDS))
def test_a_program_that_ends_after_its_deadline_earns_nothing(
    goodput: Goodput, outcome: ProgramOutcome
) -> None:
    late_s = outcome.arrival_s + (outcome.deadline_s or 0) + 1e-6
    late = replace(outcome, ended_s=max(late_s, outcome.ended_s or 1000))
    assert goodput(late) == 0


@law
@given(programs(SloKind.LATENCY), seconds, seconds)
def test_a_stream_with_only_late_tokens_earns_nothing(
    outcome: ProgramOutcome, ttft_s: float, tbt_s: float
) -> None:
    late_s = 200 + ttft_s + 20 * tbt_s  # after the due time of every token of `outcome`
    stages = tuple(
        tuple(replace(c, token_times_s=(late_s,) * len(c.token_times_s)) for c in stage)
        for stage in outcome.calls
    )
    late = replace(outcome, calls=stages, ended_s=None, ttft_s=ttft_s, tbt_s=tbt_s)
    assert tokens(late) == 0


@law
@given(programs(*DEADLINE_KINDS))
def test_a_program_that_meets_its_deadline_earns_every_token(outcome: ProgramOutcome) -> None:
    every_token = sum(c.prompt_tokens + c.output_tokens for c in outcome.each_call())
    assert tokens(outcome) == (every_token if met(outcome) else 0)


@every_definition
@law
@given(outcome=programs(), until_s=st.floats(0, 200), later_s=st.floats(0, 200))
def test_a_longer_observation_never_lowers_goodput(
    goodput: Goodput, outcome: ProgramOutcome, until_s: float, later_s: float
) -> None:
    seen = outcome.seen_until(until_s)
    assert goodput(seen) <= goodput(outcome.seen_until(until_s + later_s)) + 1e-6
    assert all(time_s <= until_s for c in seen.each_call() for time_s in c.token_times_s)
    assert outcome.seen_until(math.inf) == outcome


def test_service_gain_uses_the_given_weights() -> None:
    weighted_gain = partial(service_gain, input_weight=3, output_weight=1)
    assert weighted_gain(due(1.0, (call(1.0),))) == 31


@pytest.mark.parametrize(
    "changes",
    [
        {"output_tokens": 1},
        {"output_tokens": 3},
        {"dropped": True, "ended": True},
        {"submitted_s": 1.5},
        {"token_times_s": (2.0, 1.0)},
    ],
)
def test_an_impossible_outcome_fails_an_assertion(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        call(**{"token_times_s": (1.0, 2.0), "output_tokens": 2, "ended": True} | changes)


def in_parts(*token_times_s: float, then_from: int | None, **changes: Any) -> ProgramOutcome:
    """A program due at 5 s with an answer in two parts, the second one with a TBT of 1 s."""
    values: dict[str, Any] = {"kind": SloKind.DEADLINE, "deadline_s": 5.0, "then_tbt_s": 1.0}
    calls = (call(*token_times_s, then_from=then_from),)
    return program(calls, **(values | changes))


def test_the_second_part_of_an_answer_is_a_stream_whose_first_token_is_due_by_the_deadline() -> (
    None
):
    thought = in_parts(1.0, 2.0, 5.0, 6.0, 7.0, then_from=2)
    assert tokens(thought) == 10 + 5  # with the prompt
    assert met(thought)
    late = in_parts(1.0, 2.0, 5.0, 6.5, 7.5, then_from=2)
    assert tokens(late) == 10 + 3
    assert not met(late)


def test_what_comes_before_a_late_second_part_earns_nothing_and_its_later_tokens_may() -> None:
    late = in_parts(1.0, 2.0, 5.5, 5.6, 5.7, then_from=2)
    assert tokens(late) == 2
    assert not met(late)


def test_a_program_may_end_in_a_stream() -> None:
    first, last = call(1.0, 3.0), call(4.0, 5.5, 7.0, then_from=0)
    both = program(
        (first,), (last,), kind=SloKind.COMPOUND, deadline_s=5.0, then_tbt_s=1.0, ended_s=7.0
    )
    assert tokens(both) == 12 + 10 + 3
    assert met(both)
    unfinished = both.seen_until(4.5)
    assert tokens(unfinished) == 12 + 10 + 1
    assert not met(unfinished)


def test_an_answer_that_ends_without_its_second_part_is_due_by_the_deadline() -> None:
    assert met(in_parts(1.0, 5.0, then_from=None))
    assert tokens(in_parts(1.0, 5.0, then_from=None)) == 12
    assert not met(in_parts(1.0, 5.5, then_from=None))
    assert tokens(in_parts(1.0, 5.5, then_from=None)) == 0


@law
@given(st.lists(seconds, min_size=2, max_size=8).map(sorted), st.data())
def test_two_paces_of_one_value_are_one_stream(times_s: list[float], data: st.DataObject) -> None:
    then_from = data.draw(st.integers(1, len(times_s)))
    one = program((call(*times_s),))
    two = program((call(*times_s, then_from=then_from),), then_tbt_s=one.tbt_s)
    assert tokens(two) == tokens(one)
    assert met(two) == met(one)
    assert service_gain(two) == pytest.approx(service_gain(one))
    assert end_due_s(two) == pytest.approx(end_due_s(one))


@law
@given(st.lists(seconds, min_size=2, max_size=8).map(sorted), st.integers(0, 7))
def test_with_an_infinite_exponent_the_gain_is_the_goodput_of_both_parts(
    times_s: list[float], then_from: int
) -> None:
    outcome = in_parts(*times_s, then_from=min(then_from, len(times_s) - 1))
    gain = service_gain(outcome, input_weight=1.0, output_weight=1.0, exponent=math.inf)
    assert gain == tokens(outcome)
