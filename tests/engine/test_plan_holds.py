"""How long a plan is held (`least_steps`), and when it is replaced earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serving.policies.baselines.orderings import fcfs
from serving.slo import Slo
from serving.view import Plan, StepView
from tests.engine.test_virtual import Clock, engine_of, submit
from tests.engine.vllm_driver import use_policy

if TYPE_CHECKING:
    from serving.sim.drive.stepped import Progress
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")


class RecordingFcfs:
    """The policy fcfs, which records the step of each plan."""

    def __init__(self, engine: VirtualEngine, *, least_steps: int) -> None:
        self.steps: list[int] = []
        self._scheduler = engine.scheduler
        self._least_steps = least_steps
        use_policy(engine.scheduler, self)

    def __call__(self, view: StepView) -> Plan:
        self.steps.append(self._scheduler.current_step)
        return fcfs(view)._replace(least_steps=self._least_steps)


def run_steps(engine: VirtualEngine, count: int) -> list[Progress]:
    progress = []
    for _ in range(count):
        engine.plan_step()
        progress.append(engine.finish_step())
    return progress


def test_one_new_plan_covers_all_changes_within_the_least_steps() -> None:
    engine = engine_of(Clock())
    policy = RecordingFcfs(engine, least_steps=5)
    submit(engine, "a", 10, 60)
    submit(engine, "short", 10, 3)
    run_steps(engine, 1)
    submit(engine, "b", 10, 60)
    run_steps(engine, 1)
    submit(engine, "c", 10, 60)
    run_steps(engine, 3)  # "short" ends here
    assert policy.steps == [0]
    run_steps(engine, 1)
    assert policy.steps == [0, 5]
    assert engine.scheduler.requests.keys() == {"a", "b", "c"}
    assert len(engine.scheduler.running) == 3


def test_a_plan_older_than_its_least_steps_is_replaced_at_once() -> None:
    engine = engine_of(Clock())
    policy = RecordingFcfs(engine, least_steps=5)
    submit(engine, "a", 10, 60)
    run_steps(engine, 8)
    submit(engine, "b", 10, 60)
    run_steps(engine, 1)
    assert policy.steps == [0, 8]


def test_a_plan_is_not_held_if_no_request_is_left() -> None:
    engine = engine_of(Clock())
    policy = RecordingFcfs(engine, least_steps=50)
    submit(engine, "a", 10, 2)
    run_steps(engine, 2)
    submit(engine, "b", 10, 60)
    [progress] = run_steps(engine, 1)
    assert policy.steps == [0, 2]
    assert progress.tokens == ("b",)


def test_a_plan_is_not_held_while_all_running_requests_are_paused() -> None:
    """The plan runs "short" only; once that has ended, nothing would be computed until step 51."""
    engine = engine_of(Clock())
    RecordingFcfs(engine, least_steps=1)
    submit(engine, "long", 10, 60)
    run_steps(engine, 1)

    def alone(view: StepView) -> Plan:
        plan = fcfs(view)
        return plan._replace(run=frozenset({"short"} & plan.run) or plan.run, least_steps=50)

    submit(engine, "short", 10, 3)
    use_policy(engine.scheduler, alone)
    progress = run_steps(engine, 4)
    assert [step.tokens for step in progress] == [("short",)] * 3 + [("long",)]


def test_a_request_with_a_malformed_tag_ends_without_a_new_plan() -> None:
    engine = engine_of(Clock())
    policy = RecordingFcfs(engine, least_steps=50)
    submit(engine, "a", 10, 60)
    run_steps(engine, 1)
    broken = Slo()
    object.__setattr__(broken, "weight", -1.0)  # as a client without our SDK may send it
    submit(engine, "broken", 10, 60, broken)
    [progress] = run_steps(engine, 1)
    assert [end.request_id for end in progress.ended] == ["broken"]
    assert policy.steps == [0]


def test_a_new_policy_makes_a_plan_at_once() -> None:
    engine = engine_of(Clock())
    RecordingFcfs(engine, least_steps=50)
    submit(engine, "a", 10, 60)
    run_steps(engine, 1)
    policy = RecordingFcfs(engine, least_steps=1)
    run_steps(engine, 1)
    assert policy.steps == [1]
