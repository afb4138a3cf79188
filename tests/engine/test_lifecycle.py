"""Engines that start, close and fail: every call gets a named error or an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.own_process import json_of_module


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """The outcomes of the scenarios in lifecycle.py, which run in one process."""
    return json_of_module("lifecycle")


def test_a_missing_folder_and_one_without_a_model_raise_model_not_loaded(
    outcomes: dict[str, Any],
) -> None:
    scenario = outcomes["missing_folder"]
    kind, message = scenario["start"]
    assert kind == "ModelNotLoaded"
    assert "/no/such/model" in message
    assert "config.json" in message
    assert scenario["call"] == scenario["start"]
    assert outcomes["folder_without_a_model"]["start"][0] == "ModelNotLoaded"


def test_an_error_of_vllm_while_loading_is_in_the_message(outcomes: dict[str, Any]) -> None:
    kind, message = outcomes["too_small_kv_cache"]["start"]
    assert kind == "ModelNotLoaded"
    assert "KV cache" in message


def test_cancelling_a_call_while_the_model_loads_does_not_affect_others(
    outcomes: dict[str, Any],
) -> None:
    scenario = outcomes["cancelling_while_the_model_loads"]
    assert scenario["cancelled start"][0] == scenario["cancelled call"][0] == "CancelledError"
    assert scenario["other call"][0] == "Completion"
    assert scenario["second engine"][0] == "EngineBusy"


def test_closing_ends_every_call_with_engine_closed(outcomes: dict[str, Any]) -> None:
    scenario = outcomes["closing_under_load"]
    assert [kind for kind, _ in scenario["waiting"]] == ["EngineClosed"] * 6
    names = ("at close", "during close", "after close", "job", "start")
    kinds = {name: scenario[name][0] for name in names}
    assert kinds == dict.fromkeys(kinds, "EngineClosed")
    assert scenario["close again"][0] == "NoneType"


def test_closing_while_the_model_loads_ends_waiting_calls(outcomes: dict[str, Any]) -> None:
    scenario = outcomes["closing_while_the_model_loads"]
    assert scenario["waiting"][0] == scenario["after close"][0] == "EngineClosed"


def test_every_call_gets_the_reason_for_which_the_engine_died(outcomes: dict[str, Any]) -> None:
    scenario = outcomes["failing_policy"]
    assert len(scenario["waiting"]) == 6
    for kind, message in [*scenario["waiting"], scenario["call"], scenario["start"]]:
        assert kind == "EngineDied"
        assert "the policy is broken" in message


def test_a_job_that_ends_the_engine_ends_the_other_calls_with_engine_died(
    outcomes: dict[str, Any],
) -> None:
    scenario = outcomes["job_that_ends_the_engine"]
    assert scenario["raised"] == "SystemExit"
    assert [kind for kind, _ in scenario["waiting"]] == ["EngineDied"] * 2


def test_the_error_of_an_invalid_plan_names_the_fault(outcomes: dict[str, Any]) -> None:
    kind, message = outcomes["invalid_plan"]["call"]
    assert kind == "EngineDied"
    assert "order must name every request exactly once" in message


def test_an_engine_that_dies_is_started_again_and_its_calls_are_answered(
    outcomes: dict[str, Any],
) -> None:
    scenario = outcomes["engine_that_dies_once"]
    assert [kind for kind, _ in scenario["waiting"]] == ["Completion"] * 6
    assert scenario["stream"][0] == "AnswerLost"
    assert scenario["late"][0] == "RequestDropped"


def test_an_engine_that_is_started_again_knows_what_the_former_one_had_learned(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["engine_that_dies_once"]["knew ann"] == [False, True]


def test_an_engine_that_dies_more_often_than_it_is_started_again_ends(
    outcomes: dict[str, Any],
) -> None:
    scenario = outcomes["engine_that_dies_once"]
    for kind, message in (scenario["second death"], scenario["start"]):
        assert kind == "EngineDied"
        assert "the policy is broken" in message


def test_after_every_failure_the_process_can_start_another_engine(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["another_engine_after_all_others"]["call"][0] == "Completion"
