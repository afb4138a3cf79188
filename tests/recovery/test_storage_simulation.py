"""The recovery code on a simulated unreliable store: it holds in every schedule that is tried.

`python -m tests.recovery.storage_simulation` tries many more.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import orchestrator.sdk.steps
from orchestrator.durability.outcome_order import OutcomeOrder
from orchestrator.execution.calls import run_tool_call
from orchestrator.execution.causality import CallNode, CausalLog
from orchestrator.testing import (
    CRASHES,
    CRASHES_IN_ANY_ORDER,
    LATE_COMMITS,
    LATE_RACES,
    RACES,
    REFUSALS,
    STALLS,
    Faults,
    explore,
    explore_seeds,
    replay,
    replay_seed,
)
from store.records import RunRecord
from store.runs import Runs
from tests.recovery.simulated_flows import FLOWS, scenario_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "faults"),
    [
        ("effects", CRASHES),
        ("reconciled", CRASHES),
        ("nested", CRASHES),
        ("parallel", CRASHES_IN_ANY_ORDER),
        ("three-branches", CRASHES_IN_ANY_ORDER),
        ("racing", CRASHES_IN_ANY_ORDER),
        ("parallel", LATE_COMMITS),
        ("single", REFUSALS),
        ("single", RACES),
        ("single", LATE_RACES),
        ("single", STALLS),
    ],
)
def test_a_run_survives_every_schedule_with_few_faults(flow: str, faults: Faults) -> None:
    report = explore(scenario_of(flow), faults)
    assert not report.failures, report
    assert report.num_schedules > 15


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "max_schedules"), [("persistent", 160), ("values", 60)])
def test_a_run_survives_refused_commits(flow: str, max_schedules: int) -> None:
    report = explore(scenario_of(flow), REFUSALS, max_schedules=max_schedules)
    assert not report.failures, report


def test_a_flow_that_must_never_end_in_outcome_unknown_fails_without_reconcile() -> None:
    scenario = replace(scenario_of("single"), is_reconciled=True)
    [failed] = explore(scenario, CRASHES, max_failures=1).failures.values()
    assert "OutcomeUnknown" in failed.violations[0]
    assert "give the tool a reconcile=" in str(failed).lower()


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_a_run_survives_many_faults_at_random(flow: str) -> None:
    report = explore_seeds(scenario_of(flow), range(15))
    assert not report.failures, report


def test_a_seed_gives_the_same_schedule_again() -> None:
    first, second = (replay_seed(scenario_of("nested"), 3) for _ in range(2))
    assert first.lines == second.lines


def test_a_schedule_that_went_wrong_goes_wrong_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalLog, "begin", numbered_by_length)
    report = explore(scenario_of("parallel"), CRASHES_IN_ANY_ORDER, max_failures=1)
    [(schedule, failed)] = report.failures.items()
    assert isinstance(schedule, tuple)
    again = replay(scenario_of("parallel"), CRASHES_IN_ANY_ORDER, schedule)
    assert (again.lines, again.violations) == (failed.lines, failed.violations)


def test_a_schedule_that_does_not_fit_the_flow_is_refused() -> None:
    with pytest.raises(ValueError, match="choice 1 has 3 events, not 9"):
        replay(scenario_of("effects"), CRASHES, (0, 9))


def numbered_by_length(log: CausalLog) -> CallNode:
    """A call's number is the number of known calls: wrong, as a resumed run may lack some."""
    return log.add(len(log.parents), frozenset())


async def unordered(*_: Any) -> None:
    """An outcome that reaches the flow at once, whichever came first before."""


async def unfenced(*_: Any) -> None:
    """A write that does not check whether another process has resumed the run."""


async def claimed_by_anyone(runs: Runs, previous: RunRecord, record: RunRecord) -> None:
    """A claim that succeeds although another process was faster."""
    current = await runs.get(previous.id)
    await resume(runs, current, replace(record, attempts=current.attempts + 1))


resume = Runs.resume


async def done_before_it_is_recorded(
    context: Any, spec: Any, work: Callable[[Any], Awaitable[object]]
) -> object:
    """A tool that is executed before the record says that it begins."""
    result = await work(context)

    async def work_done(_: object) -> object:
        return result

    return await run_tool_call(context, spec, work_done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "broken", "flow", "faults", "found"),
    [
        (
            CausalLog,
            "begin",
            numbered_by_length,
            "parallel",
            CRASHES_IN_ANY_ORDER,
            "number of its own",
        ),
        (OutcomeOrder, "turn", unordered, "racing", CRASHES_IN_ANY_ORDER, "FlowChanged"),
        (Runs, "require_attempt", unfenced, "single", STALLS, "wrote .* while process"),
        (Runs, "resume", claimed_by_anyone, "single", RACES, "none of them was refused"),
        (
            orchestrator.sdk.steps,
            "run_tool_call",
            done_before_it_is_recorded,
            "single",
            CRASHES,
            r"took place \d times",
        ),
    ],
)
def test_code_that_is_broken_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    broken: object,
    flow: str,
    faults: Faults,
    found: str,
) -> None:
    monkeypatch.setattr(target, name, broken)
    report = explore(scenario_of(flow), faults, max_failures=1)
    [failed] = report.failures.values()
    assert re.search(found, "; ".join(failed.violations))
