"""Programs in closed loop against one engine in virtual time: what happened to each of them.

The engine is the production scheduler class, stepped by hand; a step lasts as long as its step
cost says. A stage's calls are submitted when the former stage really ended and its tools have run.
The same arguments give the same outcomes, to the last bit.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from serving.sim.goodput import CallOutcome, ProgramOutcome
from serving.sim.metrics import EngineCounters
from serving.sim.programs import Program, StageCall
from serving.sim.promises import Foresight, slo_of
from serving.sim.step_cost import StepCost
from serving.sim.stepped import Ended, SteppedEngine

IDLE_STEP_S = 0.001
"""What a step takes that computes nothing: the policy holds all that wait."""

_FIRST_TOKEN = 1000  # token ids of prompts; those below are the engine's


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


@dataclass(slots=True)
class _LiveCall:
    call: StageCall
    submitted_s: float
    times_s: list[float] = field(default_factory=list)
    ended: bool = False
    dropped: bool = False


@dataclass(slots=True)
class _LiveProgram:
    program: Program
    number: int
    stages: list[list[_LiveCall]] = field(default_factory=list)
    waiting_for: int = 0
    ended_s: float | None = None


class _Loop:
    def __init__(
        self, engine: SteppedEngine, clock: VirtualTime, cost: StepCost, foresight: Foresight
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._cost = cost
        self._foresight = foresight
        self._events: list[tuple[float, int, _LiveProgram]] = []
        self._order = count()
        self._calls: dict[str, tuple[_LiveProgram, _LiveCall]] = {}
        self.steps = 0
        self.schedule_s = 0.0

    def at(self, moment_s: float, live: _LiveProgram) -> None:
        """The next stage of a program is due then."""
        heapq.heappush(self._events, (moment_s, next(self._order), live))

    def run(self, until_s: float) -> None:
        while self._clock.now_s < until_s:
            while self._events and self._events[0][0] <= self._clock.now_s:
                self._begin_stage(heapq.heappop(self._events)[2])
            if self._engine.has_work:
                self._step()
            elif self._events:
                self._clock.now_s = min(self._events[0][0], until_s)
            else:
                return

    def _step(self) -> None:
        began_s = time.perf_counter()
        step = self._engine.plan_step()
        self.schedule_s += time.perf_counter() - began_s
        self.steps += 1
        if step.new_tokens:
            self._clock.now_s += self._cost.seconds(
                new_tokens=step.new_tokens,
                decode_context_tokens=step.decode_context_tokens,
                num_decodes=step.num_decodes,
                prefill_chunks=step.prefill_chunks,
            )
        else:
            next_s = self._events[0][0] if self._events else float("inf")
            self._clock.now_s = min(self._clock.now_s + IDLE_STEP_S, next_s)
        progress = self._engine.finish_step()
        for request_id in progress.tokens:
            self._calls[request_id][1].times_s.append(self._clock.now_s)
        for ended in progress.ended:
            self._end_call(ended)

    def _begin_stage(self, live: _LiveProgram) -> None:
        stage = len(live.stages)
        calls = [_LiveCall(each, self._clock.now_s) for each in live.program.stage_calls(stage)]
        live.stages.append(calls)
        live.waiting_for = len(calls)
        for place, call in enumerate(calls):
            self._calls[call.call.call_id] = (live, call)
            self._engine.submit(
                call.call.call_id,
                prompt=_prompt(live, stage, place, call.call),
                output_tokens=call.call.call.output_tokens,
                slo=slo_of(live.program, call.call, self._clock.now_s, self._foresight),
                max_tokens=max(call.call.call.output_tokens, self._foresight.max_tokens),
            )

    def _end_call(self, ended: Ended) -> None:
        found = self._calls.pop(ended.request_id, None)
        if found is None:
            return
        live, call = found
        call.ended = ended.finish_reason != "abort"
        call.dropped = not call.ended
        live.waiting_for -= 1
        if call.dropped:
            self._give_up(live)
        elif not live.waiting_for:
            self._end_stage(live)

    def _end_stage(self, live: _LiveProgram) -> None:
        stages = live.program.stages
        if len(live.stages) == len(stages):
            live.ended_s = self._clock.now_s
        else:
            self.at(self._clock.now_s + stages[len(live.stages)].tool_s, live)

    def _give_up(self, live: _LiveProgram) -> None:
        """A program that lost a call cannot end: its other calls are of no use."""
        live.ended_s = self._clock.now_s
        for call in live.stages[-1]:
            if self._calls.pop(call.call.call_id, None) is not None:
                self._engine.abort(call.call.call_id)
                call.dropped = True


def replay(
    programs: Iterable[Program],
    engine: SteppedEngine,
    clock: VirtualTime,
    cost: StepCost,
    *,
    foresight: Foresight | None = None,
    until_s: float,
) -> Replay:
    """Run programs until all are done, or until a moment of virtual time.

    Args:
        engine: idle, and reading the same clock.
        until_s: what is not done by then is reported as it stands.
    """
    loop = _Loop(engine, clock, cost, foresight or Foresight())
    lives = [_LiveProgram(program, number) for number, program in enumerate(programs)]
    for live in lives:
        loop.at(live.program.arrival_s + live.program.stages[0].tool_s, live)
    loop.run(until_s)
    counters = EngineCounters(
        preemptions=engine.preemptions,
        recomputed_tokens=engine.recomputed_tokens,
        steps=loop.steps,
        schedule_ms_per_step=1e3 * loop.schedule_s / loop.steps if loop.steps else None,
    )
    return Replay(tuple(map(_outcome, lives)), counters, clock.now_s)


def _prompt(live: _LiveProgram, stage: int, place: int, call: StageCall) -> list[int]:
    """Token ids that two calls share exactly where they share a prefix."""
    shared = call.call.shared_prefix_tokens
    own = _FIRST_TOKEN + 1 + hash((live.number, stage, place)) % 2**30
    return [_FIRST_TOKEN + live.number] * shared + [own] * (call.call.prompt_tokens - shared)


def _outcome(live: _LiveProgram) -> ProgramOutcome:
    program = live.program
    return ProgramOutcome(
        program_id=program.id,
        kind=program.kind,
        arrival_s=program.arrival_s,
        calls=tuple(tuple(map(_call_outcome, stage)) for stage in live.stages),
        ended_s=live.ended_s,
        ttft_s=program.ttft_s,
        tbt_s=program.tbt_s,
        deadline_s=program.deadline_s,
        application=program.application,
        user=program.user,
        weight=program.weight,
    )


def _call_outcome(live: _LiveCall) -> CallOutcome:
    return CallOutcome(
        submitted_s=live.submitted_s,
        prompt_tokens=live.call.call.prompt_tokens,
        output_tokens=live.call.call.output_tokens,
        token_times_s=tuple(live.times_s),
        ended=live.ended,
        dropped=live.dropped,
    )
