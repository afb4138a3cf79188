"""The live driver on the real engine: forced lengths, closed loops, counters, step costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.live_runs import MAX_TOKENS, SETTINGS
from tests.engine.own_process import json_of_module

LIMIT_S = 600


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json_of_module("live_runs", limit_s=LIMIT_S)


@pytest.mark.parametrize("load", ["small", "large"])
def test_every_call_ends_at_its_given_length(results: dict[str, Any], load: str) -> None:
    assert all(results[load]["finished"])
    assert results[load]["delivered"] == results[load]["lengths"]


def test_the_scheduler_sees_the_limit_and_not_the_given_length(results: dict[str, Any]) -> None:
    assert results["small"]["max_tokens"] == [MAX_TOKENS]


def test_steps_are_counted_and_measured(results: dict[str, Any]) -> None:
    small = results["small"]
    assert small["steps"] >= max(map(max, small["lengths"]))
    assert 0 < small["samples"] <= small["steps"]
    assert small["schedule_ms"] > 0


def test_a_policy_sees_only_the_arrivals_of_its_own_replay(results: dict[str, Any]) -> None:
    assert [results[load]["arrivals"] for load in ("small", "large", "cut short")] == [4, 6, 8]


def test_tokens_that_are_recomputed_under_memory_pressure_are_counted(
    results: dict[str, Any],
) -> None:
    assert (results["small"]["preemptions"], results["small"]["recomputed_tokens"]) == (0, 0)
    assert results["large"]["preemptions"] > 0
    assert results["large"]["recomputed_tokens"] >= results["large"]["preemptions"]


def test_a_replay_that_is_cut_short_leaves_no_kv_blocks_behind(results: dict[str, Any]) -> None:
    assert not any(results["cut short"]["finished"])
    for load in ("small", "large", "cut short"):
        assert results[load]["held_blocks"] == 0


def test_the_fitted_machine_has_the_engine_s_capacity_and_a_step_cost(
    results: dict[str, Any],
) -> None:
    assert results["capacity"]["slots"] == SETTINGS.slots
    assert results["capacity"]["step_tokens"] == SETTINGS.step_tokens
    assert results["machine"]["kv_tokens"] == SETTINGS.kv_tokens
    assert results["machine"]["step_s"] > 0
    assert results["machine"]["samples"] > 20
