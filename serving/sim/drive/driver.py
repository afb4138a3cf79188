"""Programs in closed loop against one engine in virtual time: what happened to each of them.

The engine is the production scheduler class, stepped by hand; a step lasts as long as its step
cost says. The same arguments give the same outcomes, to the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from serving.sim.drive.closed_loop import ClosedLoop
from serving.sim.drive.stepped import SteppedEngine
from serving.sim.metrics.goodput import ProgramOutcome
from serving.sim.metrics.metrics import EngineCounters
from serving.sim.programs.call_slos import Predictions, slo_of
from serving.sim.programs.programs import Program
from serving.step_cost import StepTimeModel

IDLE_STEP_S = 0.001
"""What a step takes that computes nothing: the policy holds all that wait."""


class VirtualTime:
    """A clock that only the driver moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds of virtual time."""
        return self.now_s


class Replay(NamedTuple):
    """What came of a workload."""

    programs: tuple[ProgramOutcome, ...]
    counters: EngineCounters
    ended_s: float


class Stepper:
    """An engine's steps on its own clock, each as long as it costs.

    Attributes:
        steps: how many were planned.
        schedule_s: real seconds that planning them took.
    """

    def __init__(self, engine: SteppedEngine, clock: VirtualTime, cost: StepTimeModel) -> None:
        self.engine = engine
        self.clock = clock
        self._cost = cost
        self.steps = 0
        self.schedule_s = 0.0

    def plan(self, next_event_s: float) -> float:
        """Plan a step that begins now; when it ends. One that computes nothing awaits an event."""
        began_s = time.perf_counter()
        step = self.engine.plan_step()
        self.schedule_s += time.perf_counter() - began_s
        self.steps += 1
        if not step.new_tokens:
            return min(self.clock.now_s + IDLE_STEP_S, next_event_s)
        return self.clock.now_s + self._cost.seconds(step)


def replay(
    programs: Iterable[Program],
    engine: SteppedEngine,
    clock: VirtualTime,
    cost: StepTimeModel,
    *,
    predictions: Predictions | None = None,
    until_s: float,
) -> Replay:
    """Run programs until all are done, or until a moment of virtual time.

    Args:
        engine: idle, and reading the same clock.
        until_s: what is not done by then is reported as it stands.
    """
    loop = ClosedLoop(programs)
    stepper = Stepper(engine, clock, cost)
    told = predictions or Predictions()
    while clock.now_s < until_s:
        for call in loop.due(clock.now_s):
            slo = slo_of(call.program, call.call, clock.now_s, told)
            call.submit_to(engine, slo=slo, predictions=told)
        if engine.has_work:
            _step(loop, stepper)
        elif loop.next_s < float("inf"):
            clock.now_s = min(loop.next_s, until_s)
        else:
            break
    return Replay(loop.outcomes(), counters_of([stepper]), clock.now_s)


def counters_of(steppers: Iterable[Stepper]) -> EngineCounters:
    """What all engines counted, added up; the time to schedule is per step of any."""
    each = list(steppers)
    steps = sum(stepper.steps for stepper in each)
    schedule_s = sum(stepper.schedule_s for stepper in each)
    return EngineCounters(
        preemptions=sum(stepper.engine.preemptions for stepper in each),
        recomputed_tokens=sum(stepper.engine.recomputed_tokens for stepper in each),
        steps=steps,
        schedule_ms_per_step=1e3 * schedule_s / steps if steps else None,
    )


def _step(loop: ClosedLoop, stepper: Stepper) -> None:
    clock, engine = stepper.clock, stepper.engine
    clock.now_s = stepper.plan(loop.next_s)
    progress = engine.finish_step()
    for call_id in progress.tokens:
        loop.token(call_id, clock.now_s)
    for ended in progress.ended:
        for lost in loop.end(ended, clock.now_s):
            engine.abort(lost.call_id)
