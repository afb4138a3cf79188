"""Programs under way, whatever serves them: which stage is due when, and what came of each call.

A stage's calls are submitted when the former stage really ended and its tools have run. Whoever
drives the engines tells what they did, and is told what to submit and what to abort.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from serving.sim.drive.stepped import Ended, SteppedEngine
from serving.sim.metrics.goodput import CallOutcome, ProgramOutcome
from serving.sim.programs.programs import Program, StageCall
from serving.sim.programs.promises import Predictions
from serving.slo import Slo

_FIRST_TOKEN = 1000  # token ids of prompts; those below are the engine's


@dataclass(slots=True)
class LiveCall:
    """A call that is due or under way.

    Attributes:
        due_s: when its program asks for it; an engine hears of it at the end of a step.
        submitted: whether an engine had it; else it is still on its way.
    """

    live: LiveProgram
    call: StageCall
    place: int
    due_s: float
    submitted: bool = False
    times_s: list[float] = field(default_factory=list)
    ended: bool = False
    dropped: bool = False

    @property
    def call_id(self) -> str:
        """Unique in its workload."""
        return self.call.call_id

    @property
    def program(self) -> Program:
        """The program that asks it."""
        return self.live.program

    def submit_to(self, engine: SteppedEngine, *, slo: Slo, predictions: Predictions) -> None:
        """Hand it to an engine."""
        self.submitted = True
        engine.submit(
            self.call_id,
            prompt=self._prompt(),
            output_tokens=self.call.call.output_tokens,
            slo=slo,
            max_tokens=predictions.max_tokens,
        )

    def _prompt(self) -> list[int]:
        """Token ids that two calls share exactly where they share a prefix."""
        call, number = self.call.call, self.live.number
        shared, common = call.shared_prefix_tokens, _FIRST_TOKEN + number
        if call.prefix_group:
            common = _drawn_token(number, -1, call.prefix_group)  # no stage is -1
        own = _drawn_token(number, self.call.stage, self.place)
        return [common] * shared + [own] * (call.prompt_tokens - shared)


def _drawn_token(number: int, stage: int, place: int) -> int:
    return _FIRST_TOKEN + 1 + hash((number, stage, place)) % 2**30


@dataclass(slots=True)
class LiveProgram:
    """A program and how far it has come."""

    program: Program
    number: int
    stages: list[list[LiveCall]] = field(default_factory=list)
    waiting_for: int = 0
    ended_s: float | None = None


class ClosedLoop:
    """The programs of one run."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._events: list[tuple[float, int, LiveProgram]] = []
        self._order = count()
        self._calls: dict[str, LiveCall] = {}
        self._programs = [LiveProgram(program, number) for number, program in enumerate(programs)]
        for live in self._programs:
            self._at(live.program.arrival_s + live.program.stages[0].tool_s, live)

    @property
    def next_s(self) -> float:
        """When the next stage is due; infinity if none is."""
        return self._events[0][0] if self._events else math.inf

    def due(self, now_s: float) -> Iterator[LiveCall]:
        """The calls of all stages that are due by now, in order: to be submitted at once."""
        while self._events and self._events[0][0] <= now_s:
            moment_s, _, live = heapq.heappop(self._events)
            yield from self._begin_stage(live, moment_s)

    def token(self, call_id: str, now_s: float) -> None:
        """A call got its next token."""
        self._calls[call_id].times_s.append(now_s)

    def end(self, ended: Ended, now_s: float) -> list[LiveCall]:
        """A call ended at its engine; what is to be aborted for it.

        A program that lost a call cannot end: its other calls are of no use.
        """
        call = self._calls.pop(ended.request_id, None)
        if call is None:
            return []
        live = call.live
        call.ended = ended.finish_reason != "abort"
        call.dropped = not call.ended
        live.waiting_for -= 1
        if call.dropped:
            return self._give_up(live, now_s)
        if not live.waiting_for:
            self._end_stage(live, now_s)
        return []

    def outcomes(self) -> tuple[ProgramOutcome, ...]:
        """What has come of each program so far, in the order given."""
        return tuple(map(_outcome, self._programs))

    def _at(self, moment_s: float, live: LiveProgram) -> None:
        heapq.heappush(self._events, (moment_s, next(self._order), live))

    def _begin_stage(self, live: LiveProgram, due_s: float) -> list[LiveCall]:
        calls = [
            LiveCall(live, call, place, due_s)
            for place, call in enumerate(live.program.stage_calls(len(live.stages)))
        ]
        live.stages.append(calls)
        live.waiting_for = len(calls)
        self._calls.update((call.call_id, call) for call in calls)
        return calls

    def _end_stage(self, live: LiveProgram, now_s: float) -> None:
        stages = live.program.stages
        if len(live.stages) == len(stages):
            live.ended_s = now_s
        else:
            self._at(now_s + stages[len(live.stages)].tool_s, live)

    def _give_up(self, live: LiveProgram, now_s: float) -> list[LiveCall]:
        live.ended_s = now_s
        lost = [call for call in live.stages[-1] if self._calls.pop(call.call_id, None) is not None]
        for call in lost:
            call.dropped = True
        return lost


def outcome_of(
    program: Program, calls: tuple[tuple[CallOutcome, ...], ...], ended_s: float | None
) -> ProgramOutcome:
    """What came of a program: its promise, and its calls by stage."""
    return ProgramOutcome(
        program_id=program.id,
        kind=program.kind,
        arrival_s=program.arrival_s,
        calls=calls,
        ended_s=ended_s,
        ttft_s=program.ttft_s,
        tbt_s=program.tbt_s,
        deadline_s=program.deadline_s,
        application=program.application,
        user=program.user,
        weight=program.weight,
    )


def _outcome(live: LiveProgram) -> ProgramOutcome:
    calls = tuple(calls for stage in live.stages if (calls := _submitted(stage)))
    return outcome_of(live.program, calls, live.ended_s)


def _submitted(stage: Iterable[LiveCall]) -> tuple[CallOutcome, ...]:
    return tuple(
        CallOutcome(
            submitted_s=each.due_s,
            prompt_tokens=each.call.call.prompt_tokens,
            output_tokens=each.call.call.output_tokens,
            token_times_s=tuple(each.times_s),
            ended=each.ended,
            dropped=each.dropped,
        )
        for each in stage
        if each.submitted
    )
