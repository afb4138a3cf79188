"""The share of its time that a replica needs to be in time."""

from __future__ import annotations

import pytest

from serving.router.prediction import BEST_EFFORT_S, LATE_S, pressure
from serving.router.snapshot import OpenRequest, snapshot_of
from serving.slo import Slo
from tests.unit.serving.router.router_examples import SPEED, Report, due_in, exactly, request

WORK_S = 1000 * SPEED.decode_token_s


def pressure_of(slo: Slo, *, age_s: float = 0.0, number: int = 1) -> float:
    """Of a replica with these requests, each with 1,000 tokens to generate."""
    opened = OpenRequest(request(slo, prompt_tokens=0, max_tokens=4096), age_s, 0, running=True)
    return pressure(snapshot_of("a", Report(), [opened] * number))


def test_it_is_the_work_over_the_time_until_it_is_due() -> None:
    assert pressure_of(due_in(8.0, 1000)) == pytest.approx(WORK_S / 8.0)
    assert pressure_of(due_in(8.0, 1000), number=8) == pytest.approx(8 * WORK_S / 8.0)


def test_late_work_is_urgent_and_work_without_a_due_time_is_not() -> None:
    assert pressure_of(due_in(8.0, 1000), age_s=9.0) == pytest.approx(WORK_S / LATE_S)
    assert pressure_of(Slo(length=exactly(1000))) == pytest.approx(WORK_S / BEST_EFFORT_S)


def test_an_idle_replica_has_none() -> None:
    assert pressure(snapshot_of("a", Report(), [])) == 0.0
