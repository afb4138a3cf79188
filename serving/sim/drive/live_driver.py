"""Runs programs in closed loop on a real engine in real time: the counterpart of `driver`.

Programs, SLOs, predictions and the form of the outcomes are the same as in virtual time, so that
measured and simulated runs can be compared. The model's text does not matter: each call ends at its
given length, which policies do not see.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from serving.errors import RequestDropped
from serving.generation import Chunk, GenerationRequest
from serving.goodput import CallOutcome, ProgramOutcome
from serving.policies.table import PolicySpec
from serving.sim.drive.closed_loop import outcome_of
from serving.sim.drive.driver import Replay
from serving.sim.metrics.metrics import EngineCounters
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Program, StageCall
from serving.step_cost import StepSample

_FIRST_TOKEN = 2  # lowest token id of prompts; lower ones are the begin and end of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRequest(GenerationRequest):
    """A call with a given prompt and a given answer length.

    Attributes:
        prompt_token_ids: used instead of the text `prompt`.
        output_tokens: the answer's true length, at most max_tokens; policies do not see it.
    """

    prompt_token_ids: tuple[int, ...]
    output_tokens: int


class EngineCapacity(NamedTuple):
    """The capacity of an engine: requests, tokens, KV blocks; and its vocabulary's size."""

    slots: int
    step_tokens: int
    kv_blocks: int
    block_tokens: int
    max_model_tokens: int
    vocabulary: int


class LiveEngine(Protocol):
    """A real engine that generates answers of given lengths."""

    def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield one item per token; closing the iterator aborts it."""
        ...

    async def capacity(self) -> EngineCapacity:
        """Its capacity."""
        ...

    async def reset(self, policy: PolicySpec) -> None:
        """Use this policy from now on, as if it had just started; the engine must be idle."""
        ...

    async def counters(self) -> EngineCounters:
        """Its counters since `reset`."""
        ...

    async def samples(self) -> Sequence[StepSample]:
        """The latest measured steps since `reset`."""
        ...


@dataclass(slots=True)
class _ActiveCall:
    call: StageCall
    submitted_s: float
    times_s: list[float] = field(default_factory=list)
    ended: bool = False
    dropped: bool = False


@dataclass(slots=True)
class _ActiveProgram:
    program: Program
    number: int
    stages: list[list[_ActiveCall]] = field(default_factory=list)
    ended_s: float | None = None


async def replay_live(
    programs: Iterable[Program],
    engine: LiveEngine,
    *,
    policy: PolicySpec,
    predictor: Predictor | None = None,
    until_s: float,
) -> Replay:
    """Run programs on an idle engine until all are done, or for until_s seconds.

    Args:
        until_s: real seconds from the start, which is second 0 of the outcomes. Programs that have
            not ended by then are aborted, and reported with their progress so far.
    Raises:
        ServingError: the engine failed. A call that its scheduler drops is an outcome instead.
    """
    await engine.reset(policy)
    loop = _Loop(engine, (await engine.capacity()).vocabulary, predictor or Predictions())
    active = [_ActiveProgram(program, number) for number, program in enumerate(programs)]
    await loop.run(active, until_s)
    counters = await engine.counters()
    return Replay(tuple(map(_outcome, active)), counters, loop.ended_s)


class _Loop:
    """Runs programs as asyncio tasks; second 0 is the start of `run`."""

    def __init__(self, engine: LiveEngine, vocabulary: int, predictor: Predictor) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._predictor = predictor
        self._began_s = 0.0
        self.ended_s = 0.0

    async def run(self, programs: Sequence[_ActiveProgram], until_s: float) -> None:
        self._began_s = time.monotonic()
        try:
            async with asyncio.timeout(until_s), asyncio.TaskGroup() as group:
                for active in programs:
                    group.create_task(self._run_program(active))
        except TimeoutError:
            pass
        except ExceptionGroup as errors:
            raise _first_error(errors) from errors
        self.ended_s = min(self._now_s(), until_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _run_program(self, active: _ActiveProgram) -> None:
        await self._sleep_until(active.program.arrival_s)
        for index, stage in enumerate(active.program.stages):
            await asyncio.sleep(stage.tool_s)
            if not await self._run_stage(active, index):
                break
        active.ended_s = self._now_s()

    async def _sleep_until(self, time_s: float) -> None:
        # Again, as uvloop's timers may be a millisecond early.
        while (left_s := time_s - self._now_s()) > 0:  # noqa: ASYNC110 (a clock has no event)
            await asyncio.sleep(left_s)

    async def _run_stage(self, active: _ActiveProgram, stage: int) -> bool:
        """Run the calls of a stage; returns whether all of them completed.

        If a call is dropped, its program cannot complete, so the stage's other calls are aborted.
        """
        now_s = self._now_s()
        calls = [_ActiveCall(each, now_s) for each in active.program.stage_calls(stage)]
        active.stages.append(calls)
        try:
            async with asyncio.TaskGroup() as group:
                for index, call in enumerate(calls):
                    group.create_task(self._run_call(active, index, call))
        except* RequestDropped:
            for call in calls:
                call.dropped = not call.ended
        return all(call.ended for call in calls)

    async def _run_call(self, active: _ActiveProgram, index: int, call: _ActiveCall) -> None:
        true_tokens = call.call.call.output_tokens
        assert true_tokens <= self._predictor.max_tokens, "an answer is at most max_tokens long"
        request = ForcedRequest(
            request_id=call.call.call_id,
            prompt="",
            prompt_token_ids=self._prompt(active.number, index, call.call),
            output_tokens=true_tokens,
            max_tokens=self._predictor.max_tokens,
            temperature=0.0,
            slo=self._predictor.slo_of(active.program, call.call, call.submitted_s),
        )
        async for _ in self._engine.stream(request):
            call.times_s.append(self._now_s())
        call.ended = True
        self._predictor.call_ended(
            active.program, call.call, began_s=call.submitted_s, now_s=self._now_s()
        )

    def _prompt(self, number: int, index: int, call: StageCall) -> tuple[int, ...]:
        """Token ids; calls of a program have the same ids exactly in their shared prefix."""
        shared = call.call.shared_prefix_tokens
        own = self._token(f"{number}/{call.stage}/{index}")
        return (self._token(f"{number}"),) * shared + (own,) * (call.call.prompt_tokens - shared)

    def _token(self, name: str) -> int:
        return _FIRST_TOKEN + zlib.crc32(name.encode()) % (self._vocabulary - _FIRST_TOKEN)


def _first_error(errors: ExceptionGroup[Exception]) -> Exception:
    """The first exception of nested groups."""
    error = errors.exceptions[0]
    return _first_error(error) if isinstance(error, ExceptionGroup) else error


def _outcome(active: _ActiveProgram) -> ProgramOutcome:
    calls = tuple(tuple(map(_call_outcome, stage)) for stage in active.stages)
    return outcome_of(active.program, calls, active.ended_s)


def _call_outcome(active: _ActiveCall) -> CallOutcome:
    return CallOutcome(
        submitted_s=active.submitted_s,
        prompt_tokens=active.call.call.prompt_tokens,
        output_tokens=active.call.call.output_tokens,
        token_times_s=tuple(active.times_s),
        ended=active.ended,
        dropped=active.dropped,
    )
