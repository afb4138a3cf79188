"""The remaining work of a program: the length of its chain of calls, as predicted."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.program_demand import (
    MAX_REST,
    ProgramDemand,
    arrived_programs,
    calls_of,
    present_programs,
    with_shares,
)
from serving.requests import Requests
from serving.slo import BEST_EFFORT, FutureWork
from serving.view import StepModel
from tests.unit.serving.serving_examples import compound, deadline, latency, request, step

MODEL = StepModel(base_s=0.009, token_s=0.001, sequence_s=0.0, context_s=0.0)
"""A step of one token takes 10 ms."""


def run_that_begins(**future: float) -> tuple[ProgramDemand, ProgramDemand]:
    """A program with a first stage of one call of 100 tokens: as present, and as an arrival."""
    rest = FutureWork(0.0, 0.0, 0.0, 0.0, 0.0)._replace(**future)
    slo = compound(50.0, final_s=100.0, program="run", stage_calls=1, future=rest)
    first = request("first", slo=slo, max_tokens=100)
    view = step(first, model=MODEL, arrivals=Requests.of([first]))
    return present_programs(view, calls_of(view.requests, MODEL)), arrived_programs(view)


@pytest.mark.parametrize(
    ("critical_s", "tool_s", "serial_tokens"),
    [(3.0, 0.0, 400.0), (3.0, 1.0, 300.0), (60.0, 1.0, 1000.0), (0.0, 1.0, 100.0)],
)
def test_without_serial_tokens_the_chain_has_at_most_the_steps_of_its_critical_path(
    critical_s: float, tool_s: float, serial_tokens: float
) -> None:
    """900 tokens follow; the critical path limits how many of them are serial."""
    future = {"calls": 9, "decode_tokens": 900, "critical_s": critical_s, "tool_s": tool_s}
    for programs in run_that_begins(**future):
        assert programs.serial_tokens.tolist() == [pytest.approx(serial_tokens)]
        assert programs.decode_tokens.tolist() == [1000.0]


@pytest.mark.parametrize(
    ("predicted", "serial_tokens"), [(0.0, 100.0), (250.0, 350.0), (2000.0, 2100.0)]
)
@pytest.mark.parametrize("critical_s", [0.0, 1e9])
def test_predicted_serial_tokens_are_used_regardless_of_the_critical_path(
    predicted: float, serial_tokens: float, critical_s: float
) -> None:
    future = {
        "calls": 9,
        "decode_tokens": 900,
        "critical_s": critical_s,
        "serial_tokens": predicted,
    }
    for programs in run_that_begins(**future):
        assert programs.serial_tokens.tolist() == [pytest.approx(serial_tokens)]
        assert programs.decode_tokens.tolist() == [1000.0]


def test_programs_with_and_without_serial_tokens_may_be_in_one_view() -> None:
    without = FutureWork(9.0, 0.0, 900.0, 60.0, 0.0)
    futures = {"with": without._replace(serial_tokens=250.0), "without": without}
    rows = [
        request(name, slo=compound(50.0, program=name, future=future), max_tokens=100)
        for name, future in futures.items()
    ]
    view = step(*rows, model=MODEL)
    programs = present_programs(view, calls_of(view.requests, MODEL))
    assert programs.serial_tokens.tolist() == [350.0, 1000.0]


def test_an_unknown_future_is_made_from_the_share_of_the_time_that_the_stage_gets() -> None:
    """A quarter of the time for two calls of 100 tokens: three times as much follows."""
    slo = compound(25.0, final_s=100.0, program="run", stage_calls=2)
    first = request("first", slo=slo, prompt_tokens=40, max_tokens=100)
    futures = with_shares(Requests.of([first, first._replace(output_tokens=60)]))
    expected = FutureWork(6.0, 240.0, 600.0, 0.0, 0.0, serial_tokens=300.0)
    assert futures.tolist() == [list(expected)] * 2


def test_known_futures_and_those_without_a_sub_deadline_are_as_they_were() -> None:
    known = FutureWork(1.0, 2.0, 3.0, 4.0, 0.5, 6.0)
    slos = {
        "known": compound(25.0, final_s=100.0, future=known),
        "no sub-deadline": compound(100.0, final_s=100.0),
        "single call": deadline(25.0),
        "stream": latency(1.0, 0.1),
        "best effort": BEST_EFFORT,
    }
    requests = Requests.of([request(name, slo=slo) for name, slo in slos.items()])
    assert with_shares(requests) is requests.future
    unknown = request("unknown", slo=compound(50.0, final_s=100.0), max_tokens=10)
    others = Requests.of([*requests, unknown])
    np.testing.assert_array_equal(with_shares(others)[:-1], requests.future)
    assert with_shares(others)[-1][0] == 1.0


def test_a_call_that_begins_late_in_its_stage_has_a_limited_future() -> None:
    slo = compound(1e-3, final_s=1e6, program="run")
    [future] = with_shares(Requests.of([request("late", slo=slo, max_tokens=10)]))
    assert future.tolist() == [MAX_REST, 160.0, 160.0, 0.0, 0.0, 160.0]
