"""Errors of the runtime: public, picklable, and subclasses of the standard errors."""

from __future__ import annotations

import copy
import pickle

import pytest

import orchestrator
from orchestrator.errors import (
    AnswerRefused,
    ArgumentsDiffer,
    BudgetExceeded,
    DeadlineExceeded,
    DeadlineInfeasible,
    EffectsAfterFork,
    FlowChanged,
    InvalidDuration,
    InvalidRunId,
    InvalidSettings,
    McpServerFailed,
    NoForkPoint,
    NoOpenQuestion,
    OrchestrateError,
    OutcomeNotRecorded,
    OutcomeUnknown,
    OutsideRun,
    PackageShadowed,
    ResultNotSerialisable,
    ResultUnreadable,
    RunAlreadyEnded,
    RunCancelled,
    RunEnded,
    RunInterrupted,
    RunNotForkable,
    RunNotResumable,
    RuntimeDraining,
    StepFailed,
    ToolCallsInvalid,
    ToolFailed,
    UnknownEngine,
    UnknownModel,
    WouldBlock,
    WrongLoop,
)

ERRORS = [
    AnswerRefused("3f2a", "input", "'x' is not of type 'integer'"),
    ArgumentsDiffer("3f2a"),
    BudgetExceeded("plan", 1200, 1000, 3, None),
    NoOpenQuestion("3f2a", "has no open question"),
    RunAlreadyEnded("3f2a", "completed"),
    RunCancelled("3f2a"),
    DeadlineExceeded("plan", 0.25),
    DeadlineInfeasible("plan", 2.0, 8.5, 12),
    EffectsAfterFork("3f2a", "plan", ("send", "post[1]")),
    FlowChanged("3f2a", "step plan", "step read"),
    InvalidDuration("5 parsecs", "is not a duration"),
    InvalidRunId("../x"),
    InvalidSettings("ORCHESTRATE_SLOTS: must be a number"),
    McpServerFailed("uvx files", "it ended"),
    NoForkPoint("3f2a", "ask", "several steps begin or end so", ("ask[0]", "ask[1]")),
    OutcomeNotRecorded("run-1", "send[1]", "the store is busy"),
    OutcomeUnknown("3f2a", "publish"),
    OutsideRun("llm()"),
    PackageShadowed("store", "/home/me/store.py", "cli, store"),
    ResultNotSerialisable("step plan", "a socket"),
    ResultUnreadable("step plan", "not a number"),
    RunEnded("chain"),
    RunInterrupted("3f2a"),
    RuntimeDraining("run 3f2a"),
    RunNotForkable("3f2a", "its arguments were not recorded"),
    RunNotResumable("3f2a", "process 7 on here is executing it"),
    StepFailed("plan", "Boom: why"),
    ToolCallsInvalid("agent", 4, "there is no tool 'fly'"),
    ToolFailed("weather", "no such city"),
    UnknownEngine("jugde", ("judge",)),
    UnknownModel("mistral", ("random", "qwen")),
    WouldBlock("chain.invoke"),
    WrongLoop("step plan"),
]


def test_every_error_class_is_public_and_has_an_example_here() -> None:
    assert {type(error) for error in ERRORS} == set(OrchestrateError.__subclasses__())
    for error in ERRORS:
        assert type(error).__name__ in orchestrator.__all__


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_arguments_through_pickling_and_copying(
    error: OrchestrateError,
) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert other.args == error.args
        assert str(other) == str(error)


def test_deadline_and_duration_errors_can_be_caught_as_standard_errors() -> None:
    assert issubclass(DeadlineExceeded, TimeoutError)
    assert issubclass(InvalidDuration, ValueError)


def test_all_public_names_exist_and_are_sorted() -> None:
    assert sorted(orchestrator.__all__) == orchestrator.__all__
    for name in orchestrator.__all__:
        assert getattr(orchestrator, name) is not None
