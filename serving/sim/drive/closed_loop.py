"""The state of running programs: when each stage is due, and the outcome of each call.

A stage's calls are submitted when the previous stage has ended and the tools have run. The driver
of the engines reports tokens and ends, and gets the calls to submit and to abort.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from serving.goodput import CallOutcome, ProgramOutcome
from serving.sim.drive.stepped import Ended, SteppedEngine
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Program, StageCall
from serving.slo import Slo

_FIRST_TOKEN = 1000  # lowest token id of prompts; the simulated engine uses lower ones


@dataclass(slots=True)
class ActiveCall:
    """A call that is due or running.

    Attributes:
        index: of the call in its stage.
        due_s: when its program submits it; the engine takes it at the end of its current step.
        submitted: whether an engine has taken it.
    """

    owner: ActiveProgram
    call: StageCall
    index: int
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
        """The program that it belongs to."""
        return self.owner.program

    def submit_to(self, engine: SteppedEngine, *, slo: Slo, max_tokens: int) -> None:
        """Submit it to an engine."""
        self.submitted = True
        engine.submit(
            self.call_id,
            prompt=self._prompt(),
            output_tokens=self.call.call.output_tokens,
            slo=slo,
            max_tokens=max_tokens,
            whole_tokens=self.call.call.then_from or None,
        )

    def _prompt(self) -> list[int]:
        """Token ids; two calls have the same ids exactly in their shared prefix."""
        call, number = self.call.call, self.owner.number
        shared, common = call.shared_prefix_tokens, _FIRST_TOKEN + number
        if call.prefix_group:
            common = _hashed_token(number, -1, call.prefix_group)  # no stage has the index -1
        own = _hashed_token(number, self.call.stage, self.index)
        return [common] * shared + [own] * (call.prompt_tokens - shared)


def _hashed_token(number: int, stage: int, index: int) -> int:
    return _FIRST_TOKEN + 1 + hash((number, stage, index)) % 2**30


@dataclass(slots=True)
class ActiveProgram:
    """A program and its progress.

    Attributes:
        number: of the program in its run.
        num_open_calls: calls of the current stage that have not ended.
    """

    program: Program
    number: int
    stages: list[list[ActiveCall]] = field(default_factory=list)
    num_open_calls: int = 0
    ended_s: float | None = None


class ClosedLoop:
    """The programs of one run: the next stage of each starts after the previous one has ended.

    Args:
        predictor: is told of each call that ends.
    """

    def __init__(self, programs: Iterable[Program], predictor: Predictor) -> None:
        self._predictor = predictor
        self._events: list[tuple[float, int, ActiveProgram]] = []
        self._order = count()
        self._calls: dict[str, ActiveCall] = {}
        self._programs = [ActiveProgram(program, number) for number, program in enumerate(programs)]
        for active in self._programs:
            first_s = active.program.arrival_s + active.program.stages[0].tool_s
            self._schedule_stage(first_s, active)

    @property
    def next_s(self) -> float:
        """When the next stage is due; infinity if none is."""
        return self._events[0][0] if self._events else math.inf

    def due(self, now_s: float) -> Iterator[ActiveCall]:
        """The calls of all stages that are due by now, in order; the driver must submit them."""
        while self._events and self._events[0][0] <= now_s:
            due_s, _, active = heapq.heappop(self._events)
            yield from self._begin_stage(active, due_s)

    def token(self, call_id: str, now_s: float) -> None:
        """Record a token of a call."""
        self._calls[call_id].times_s.append(now_s)

    def end(self, ended: Ended, now_s: float) -> list[ActiveCall]:
        """Record the end of a call; returns the calls that the driver must abort.

        If a call was dropped, its program cannot complete, so its other calls are aborted.
        """
        call = self._calls.pop(ended.request_id, None)
        if call is None:
            return []
        active = call.owner
        call.ended = ended.finish_reason != "abort"
        call.dropped = not call.ended
        active.num_open_calls -= 1
        if call.dropped:
            return self._end_dropped(active, now_s)
        self._predictor.call_ended(active.program, call.call, began_s=call.due_s, now_s=now_s)
        if not active.num_open_calls:
            self._end_stage(active, now_s)
        return []

    def outcomes(self) -> tuple[ProgramOutcome, ...]:
        """The outcome of each program so far, in the order given."""
        return tuple(map(_outcome, self._programs))

    def _schedule_stage(self, due_s: float, active: ActiveProgram) -> None:
        heapq.heappush(self._events, (due_s, next(self._order), active))

    def _begin_stage(self, active: ActiveProgram, due_s: float) -> list[ActiveCall]:
        calls = [
            ActiveCall(active, call, index, due_s)
            for index, call in enumerate(active.program.stage_calls(len(active.stages)))
        ]
        active.stages.append(calls)
        active.num_open_calls = len(calls)
        self._calls.update((call.call_id, call) for call in calls)
        return calls

    def _end_stage(self, active: ActiveProgram, now_s: float) -> None:
        stages = active.program.stages
        if len(active.stages) == len(stages):
            active.ended_s = now_s
        else:
            self._schedule_stage(now_s + stages[len(active.stages)].tool_s, active)

    def _end_dropped(self, active: ActiveProgram, now_s: float) -> list[ActiveCall]:
        """End a program after a drop; returns its calls that are still open."""
        active.ended_s = now_s
        stage = active.stages[-1]
        still_open = [call for call in stage if self._calls.pop(call.call_id, None) is not None]
        for call in still_open:
            call.dropped = True
        return still_open


def outcome_of(
    program: Program, calls: tuple[tuple[CallOutcome, ...], ...], ended_s: float | None
) -> ProgramOutcome:
    """The outcome of a program: its SLO, and its calls by stage."""
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
        then_tbt_s=program.then_tbt_s,
    )


def _outcome(active: ActiveProgram) -> ProgramOutcome:
    calls = tuple(calls for stage in active.stages if (calls := _submitted(stage)))
    return outcome_of(active.program, calls, active.ended_s)


def _submitted(stage: Iterable[ActiveCall]) -> tuple[CallOutcome, ...]:
    """The outcomes of a stage's calls that an engine has taken."""
    return tuple(
        CallOutcome(
            submitted_s=each.due_s,
            prompt_tokens=each.call.call.prompt_tokens,
            output_tokens=each.call.call.output_tokens,
            token_times_s=tuple(each.times_s),
            ended=each.ended,
            dropped=each.dropped,
            then_from=each.call.call.then_from,
        )
        for each in stage
        if each.submitted
    )
