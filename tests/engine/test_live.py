"""The live driver on the real engine: forced lengths, closed loops, counters, a fitted machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.apart import printed_by
from tests.engine.live_runs import MAX_TOKENS, SETTINGS

LIMIT_S = 600


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return printed_by("live_runs", limit_s=LIMIT_S)


@pytest.mark.parametrize("load", ["small", "large"])
def test_every_call_ends_by_itself_at_its_length(found: dict[str, Any], load: str) -> None:
    assert all(found[load]["finished"])
    assert found[load]["delivered"] == found[load]["asked"]


def test_the_scheduler_sees_the_limit_and_not_the_length(found: dict[str, Any]) -> None:
    assert found["small"]["max_tokens"] == [MAX_TOKENS]


def test_steps_are_counted_and_measured(found: dict[str, Any]) -> None:
    small = found["small"]
    assert small["steps"] >= max(map(max, small["asked"]))
    assert 0 < small["samples"] <= small["steps"]
    assert small["schedule_ms"] > 0


def test_a_replay_is_told_of_its_own_arrivals_only(found: dict[str, Any]) -> None:
    assert [found[load]["arrivals"] for load in ("small", "large", "cut short")] == [4, 6, 8]


def test_what_memory_pressure_computes_twice_is_counted(found: dict[str, Any]) -> None:
    assert (found["small"]["preemptions"], found["small"]["recomputed_tokens"]) == (0, 0)
    assert found["large"]["preemptions"] > 0
    assert found["large"]["recomputed_tokens"] >= found["large"]["preemptions"]


def test_what_is_cut_short_leaves_nothing_behind(found: dict[str, Any]) -> None:
    assert not any(found["cut short"]["finished"])
    for load in ("small", "large", "cut short"):
        assert found[load]["held_blocks"] == 0


def test_the_fitted_machine_has_the_engines_room_and_a_cost(found: dict[str, Any]) -> None:
    assert found["room"]["slots"] == SETTINGS.slots
    assert found["room"]["step_tokens"] == SETTINGS.step_tokens
    assert found["machine"]["kv_tokens"] == SETTINGS.kv_tokens
    assert found["machine"]["step_s"] > 0
    assert found["machine"]["samples"] > 20
