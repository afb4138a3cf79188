"""Starting, closing and dying: every caller is told, and the process can start another engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.apart import printed_by


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What came of each scenario of lifecycle.py, one engine after the other in one process."""
    return printed_by("lifecycle")


def test_a_model_that_is_not_there_is_not_loaded(outcomes: dict[str, Any]) -> None:
    found = outcomes["a_folder_that_is_not_there"]
    kind, said = found["first"]
    assert kind == "ModelNotLoaded"
    assert "/no/such/model" in said
    assert "config.json" in said
    assert found["again"] == found["first"]
    assert outcomes["a_folder_that_is_no_model"]["first"][0] == "ModelNotLoaded"


def test_what_vllm_cannot_load_says_why(outcomes: dict[str, Any]) -> None:
    kind, said = outcomes["vllm_itself_cannot_load"]["first"]
    assert kind == "ModelNotLoaded"
    assert "KV cache" in said


def test_a_caller_who_leaves_while_the_model_loads_disturbs_nobody(
    outcomes: dict[str, Any],
) -> None:
    found = outcomes["a_caller_leaves_while_the_model_loads"]
    assert found["leaver"][0] == found["generator"][0] == "CancelledError"
    assert found["stayer"][0] == "Completion"
    assert found["second engine"][0] == "EngineBusy"


def test_closing_tells_every_caller(outcomes: dict[str, Any]) -> None:
    found = outcomes["closing_under_load"]
    assert [kind for kind, _ in found["waiting"]] == ["EngineClosed"] * 6
    told = {who: found[who][0] for who in ("racer", "late", "later", "call", "start")}
    assert told == dict.fromkeys(told, "EngineClosed")
    assert found["close again"][0] == "NoneType"


def test_closing_while_the_model_loads_tells_who_waits_for_it(outcomes: dict[str, Any]) -> None:
    found = outcomes["closing_while_the_model_loads"]
    assert found["caller"][0] == found["later"][0] == "EngineClosed"


def test_a_broken_loop_tells_every_caller_why_the_engine_died(outcomes: dict[str, Any]) -> None:
    found = outcomes["the_engines_own_loop_fails"]
    assert len(found["waiting"]) == 6
    for kind, said in [*found["waiting"], found["later"], found["start"]]:
        assert kind == "EngineDied"
        assert "the policy is broken" in said


def test_work_that_ends_the_engine_is_its_callers_and_everybodys_end(
    outcomes: dict[str, Any],
) -> None:
    found = outcomes["work_that_ends_the_engine"]
    assert found["told"] == "SystemExit"
    assert [kind for kind, _ in found["waited"]] == ["EngineDied"] * 2


def test_an_unsound_plan_names_its_policy_and_its_fault(outcomes: dict[str, Any]) -> None:
    kind, said = outcomes["an_unsound_plan"]["caller"]
    assert kind == "EngineDied"
    assert "order must name every request exactly once" in said


def test_after_every_end_the_process_can_start_another_engine(outcomes: dict[str, Any]) -> None:
    assert outcomes["after_all_that_another_engine"]["caller"][0] == "Completion"
