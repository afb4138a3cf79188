"""Errors of the runtime: public, picklable, and subclasses of the standard errors."""

from __future__ import annotations

import copy
import pickle

import pytest

import orchestrator
from orchestrator.environment.conflicts import Conflict
from orchestrator.environment.errors import (
    ApplyBusy,
    ApplyFailed,
    ApplyUnfinished,
    BaseChanged,
    BaseRefused,
    CommandFailed,
    InvalidResolution,
    MergeConflict,
    NotRevertible,
    NoWorkspace,
    OutsideWorkspace,
    SandboxFailed,
    ServiceFailed,
    ShellBusy,
    StateLost,
    WorkspaceBusy,
    WorkspaceClosed,
    WorkspaceFull,
)
from orchestrator.errors import (
    AnswerRefused,
    ArgumentsDiffer,
    BudgetExceeded,
    DeadlineExceeded,
    DeadlineInfeasible,
    EffectsAfterFork,
    FlowChanged,
    InvalidCron,
    InvalidDuration,
    InvalidQueueOption,
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
    ApplyBusy("/home/me/repo"),
    ApplyFailed("/home/me/repo", "a.txt", "the disk is full"),
    ApplyUnfinished("/home/me/repo"),
    ArgumentsDiffer("3f2a"),
    BaseChanged("/home/me/repo", ["a.txt"]),
    BaseRefused("/", "it is the root of all files"),
    CommandFailed("pytest -q", 1, "1 failed"),
    InvalidResolution("a.txt", "'mine' is no resolution"),
    MergeConflict([Conflict("a.txt", "text", None, None, None)]),
    NotRevertible("repo", [("publish", "publish[1]")]),
    NoWorkspace("run_tests"),
    OutsideWorkspace("../x", "/home/me/repo"),
    SandboxFailed("unshare: Operation not permitted", 1),
    ServiceFailed("db", "ended with exit code 1", "no such file"),
    ShellBusy([(7, "sleep 100")]),
    StateLost("3f2a" * 16, "it is not stored here"),
    WorkspaceBusy("repo", "ws.run"),
    WorkspaceClosed("/home/me/repo"),
    WorkspaceFull(2000, 1000),
    BudgetExceeded("plan", 1200, 1000, 3, None),
    NoOpenQuestion("3f2a", "has no open question"),
    RunAlreadyEnded("3f2a", "completed"),
    RunCancelled("3f2a"),
    DeadlineExceeded("plan", 0.25),
    DeadlineInfeasible("plan", 2.0, 8.5, 12),
    EffectsAfterFork("3f2a", "plan", ("send", "post[1]")),
    FlowChanged("3f2a", "step plan", "step read"),
    InvalidCron("61 * * * *", "minutes go to 59"),
    InvalidDuration("5 parsecs", "is not a duration"),
    InvalidQueueOption("priority", "high", "a whole number"),
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


def test_an_error_about_many_paths_names_some_and_counts_the_others() -> None:
    paths = [f"file{number}" for number in range(12)]
    error = BaseChanged("/repo", paths)
    assert error.paths == tuple(paths)
    assert "'file0', " in str(error)
    assert "'file9' and 2 more; nothing was written" in str(error)


def test_a_failed_apply_says_whether_it_was_undone() -> None:
    for is_undone in (True, False):
        error = ApplyFailed("/repo", "a", "Permission denied", is_undone=is_undone)
        again = pickle.loads(pickle.dumps(error))
        assert error.is_undone == again.is_undone == is_undone
        assert ("as it was before" in str(again)) == is_undone
