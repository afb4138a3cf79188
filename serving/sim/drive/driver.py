"""Runs programs in closed loop on one engine in virtual time.

The engine is the production scheduler class, stepped by this driver. A step takes its step cost.
The same arguments give exactly the same outcomes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from serving.goodput import ProgramOutcome
from serving.sim.drive.closed_loop import ClosedLoop
from serving.sim.drive.stepped import SteppedEngine
from serving.sim.metrics.metrics import EngineCounters
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Program
from serving.step_cost import StepTimeModel

IDLE_STEP_S = 0.001
"""Duration of a step that computes nothing, as when the policy admits none of the queue."""


class VirtualTime:
    """A clock that only the driver moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds of virtual time."""
        return self.now_s


class Replay(NamedTuple):
    """The outcomes of a workload's programs, and the engine's counters."""

    programs: tuple[ProgramOutcome, ...]
    counters: EngineCounters
    ended_s: float


class Stepper:
    """Steps an engine on its own clock; each step takes its cost.

    Attributes:
        steps: number of planned steps.
        schedule_s: real seconds to plan them.
    """

    def __init__(self, engine: SteppedEngine, clock: VirtualTime, cost: StepTimeModel) -> None:
        self.engine = engine
        self.clock = clock
        self._cost = cost
        self.steps = 0
        self.schedule_s = 0.0

    def plan(self, next_event_s: float) -> float:
        """Plan a step that begins now; returns when it ends.

        A step that computes nothing takes IDLE_STEP_S, or less if the next event is earlier.
        """
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
    predictor: Predictor | None = None,
    until_s: float,
) -> Replay:
    """Run programs until all are done, or until a moment of virtual time.

    Args:
        engine: an idle engine that reads the same clock.
        predictor: None: no predictions.
        until_s: programs that have not ended by then are reported with their progress so far.
    """
    predictor = predictor or Predictions()
    loop = ClosedLoop(programs, predictor)
    stepper = Stepper(engine, clock, cost)
    while clock.now_s < until_s:
        for call in loop.due(clock.now_s):
            slo = predictor.slo_of(call.program, call.call, clock.now_s)
            call.submit_to(engine, slo=slo, max_tokens=predictor.max_tokens)
        if engine.has_work:
            _step(loop, stepper)
        elif loop.next_s < float("inf"):
            clock.now_s = min(loop.next_s, until_s)
        else:
            break
    return Replay(loop.outcomes(), counters_of([stepper]), clock.now_s)


def counters_of(steppers: Iterable[Stepper]) -> EngineCounters:
    """The sum of all engines' counters; the time to schedule is the mean over all their steps."""
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
        for call in loop.end(ended, clock.now_s):
            engine.abort(call.call_id)
