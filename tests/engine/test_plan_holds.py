"""How long a plan holds whatever happens, and when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serving.policies.baselines.orderings import fcfs
from serving.slo import Slo
from serving.view import Plan, StepView
from tests.engine.test_virtual import Clock, engine_of, submit
from tests.engine.vllm_driver import decide_by

if TYPE_CHECKING:
    from serving.sim.drive.stepped import Progress
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")


class Planned:
    """First come, first served; notes the step at which each plan was made."""

    def __init__(self, engine: VirtualEngine, *, least_steps: int) -> None:
        self.at: list[int] = []
        self._scheduler = engine.scheduler
        self._least_steps = least_steps
        decide_by(engine.scheduler, self)

    def __call__(self, view: StepView) -> Plan:
        self.at.append(self._scheduler.current_step)
        return fcfs(view)._replace(least_steps=self._least_steps)


def steps(engine: VirtualEngine, count: int) -> list[Progress]:
    made = []
    for _ in range(count):
        engine.plan_step()
        made.append(engine.finish_step())
    return made


def test_what_happens_within_a_plans_least_steps_is_answered_by_one_new_plan() -> None:
    engine = engine_of(Clock())
    planned = Planned(engine, least_steps=5)
    submit(engine, "a", 10, 60)
    submit(engine, "short", 10, 3)
    steps(engine, 1)
    submit(engine, "b", 10, 60)
    steps(engine, 1)
    submit(engine, "c", 10, 60)
    steps(engine, 3)  # "short" ends here
    assert planned.at == [0]
    steps(engine, 1)
    assert planned.at == [0, 5]
    assert engine.scheduler.requests.keys() == {"a", "b", "c"}
    assert len(engine.scheduler.running) == 3


def test_a_plan_older_than_its_least_steps_gives_way_at_once() -> None:
    engine = engine_of(Clock())
    planned = Planned(engine, least_steps=5)
    submit(engine, "a", 10, 60)
    steps(engine, 8)
    submit(engine, "b", 10, 60)
    steps(engine, 1)
    assert planned.at == [0, 8]


def test_an_empty_engine_plans_at_once() -> None:
    engine = engine_of(Clock())
    planned = Planned(engine, least_steps=50)
    submit(engine, "a", 10, 2)
    steps(engine, 2)
    submit(engine, "b", 10, 60)
    [progress] = steps(engine, 1)
    assert planned.at == [0, 2]
    assert progress.tokens == ("b",)


def test_nobody_waits_for_a_plan_while_all_who_run_are_paused() -> None:
    """The plan ran "short" alone; once it has ended, nothing would be computed until step 51."""
    engine = engine_of(Clock())
    Planned(engine, least_steps=1)
    submit(engine, "long", 10, 60)
    steps(engine, 1)

    def alone(view: StepView) -> Plan:
        plan = fcfs(view)
        return plan._replace(run=frozenset({"short"} & plan.run) or plan.run, least_steps=50)

    submit(engine, "short", 10, 3)
    decide_by(engine.scheduler, alone)
    progress = steps(engine, 4)
    assert [step.tokens for step in progress] == [("short",)] * 3 + [("long",)]


def test_a_malformed_tag_does_not_wait_for_a_plan() -> None:
    engine = engine_of(Clock())
    planned = Planned(engine, least_steps=50)
    submit(engine, "a", 10, 60)
    steps(engine, 1)
    broken = Slo()
    object.__setattr__(broken, "weight", -1.0)  # as another client may send it
    submit(engine, "broken", 10, 60, broken)
    [progress] = steps(engine, 1)
    assert [end.request_id for end in progress.ended] == ["broken"]
    assert planned.at == [0]


def test_a_new_policy_is_asked_at_once() -> None:
    engine = engine_of(Clock())
    Planned(engine, least_steps=50)
    submit(engine, "a", 10, 60)
    steps(engine, 1)
    planned = Planned(engine, least_steps=1)
    steps(engine, 1)
    assert planned.at == [1]
