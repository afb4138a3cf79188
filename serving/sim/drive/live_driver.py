"""Programs in closed loop against a real engine, in real time: the counterpart of `driver`.

The same programs, promises and foresight as in virtual time, and outcomes of the same form, so that
measured and simulated runs are laid side by side. The model's text does not matter: each call
ends at its program's length, which the policy is not told.
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
from serving.policies.table import PolicySpec
from serving.sim.drive.closed_loop import outcome_of
from serving.sim.drive.driver import Replay
from serving.sim.metrics.goodput import CallOutcome, ProgramOutcome
from serving.sim.metrics.metrics import EngineCounters
from serving.sim.programs.programs import Program, StageCall
from serving.sim.programs.promises import Predictions, slo_of
from serving.step_cost import StepSample

_FIRST_TOKEN = 2  # token ids of prompts; those below begin and end texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRequest(GenerationRequest):
    """A call whose prompt and length are given.

    Attributes:
        prompt_token_ids: what stands for the prompt.
        output_tokens: the answer's true length, at most max_tokens; no policy is told.
    """

    prompt_token_ids: tuple[int, ...]
    output_tokens: int


class EngineRoom(NamedTuple):
    """What an engine has room for."""

    slots: int
    step_tokens: int
    kv_blocks: int
    block_tokens: int
    max_model_tokens: int
    vocabulary: int


class LiveEngine(Protocol):
    """A real engine that can be told how long its answers are."""

    def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield an item a token; closing the iterator aborts it."""
        ...

    async def room(self) -> EngineRoom:
        """What it has room for."""
        ...

    async def begin(self, policy: PolicySpec) -> None:
        """Plan by this policy from now on, as if it had just started; the engine must be idle."""
        ...

    async def counters(self) -> EngineCounters:
        """What it counted since `begin`."""
        ...

    async def samples(self) -> Sequence[StepSample]:
        """The latest steps since `begin`, as measured."""
        ...


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
    ended_s: float | None = None


async def replay_live(
    programs: Iterable[Program],
    engine: LiveEngine,
    *,
    policy: PolicySpec,
    predictions: Predictions | None = None,
    until_s: float,
) -> Replay:
    """Run programs on an idle engine until all are done, or for so many seconds.

    Args:
        until_s: real seconds from the first moment, which is second 0 of the outcomes too; what
            is not done by then is aborted, and reported as it stood.
    Raises:
        ServingError: the engine failed; a call that its scheduler drops is an outcome instead.
    """
    await engine.begin(policy)
    loop = _Loop(engine, (await engine.room()).vocabulary, predictions or Predictions())
    lives = [_LiveProgram(program, number) for number, program in enumerate(programs)]
    await loop.run(lives, until_s)
    counters = await engine.counters()
    return Replay(tuple(map(_outcome, lives)), counters, loop.ended_s)


class _Loop:
    """Second 0 is the moment at which `run` begins."""

    def __init__(self, engine: LiveEngine, vocabulary: int, predictions: Predictions) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._predictions = predictions
        self._began_s = 0.0
        self.ended_s = 0.0

    async def run(self, lives: Sequence[_LiveProgram], until_s: float) -> None:
        self._began_s = time.monotonic()
        try:
            async with asyncio.timeout(until_s), asyncio.TaskGroup() as group:
                for live in lives:
                    group.create_task(self._run_program(live))
        except TimeoutError:
            pass
        except ExceptionGroup as failed:
            raise _first(failed) from failed
        self.ended_s = min(self._now_s(), until_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _run_program(self, live: _LiveProgram) -> None:
        await self._sleep_until(live.program.arrival_s)
        for number, stage in enumerate(live.program.stages):
            await asyncio.sleep(stage.tool_s)
            if not await self._run_stage(live, number):
                break
        live.ended_s = self._now_s()

    async def _sleep_until(self, moment_s: float) -> None:
        await asyncio.sleep(max(moment_s - self._now_s(), 0.0))

    async def _run_stage(self, live: _LiveProgram, stage: int) -> bool:
        """Whether all calls of a stage came to an end; if one is dropped, the others are aborted:
        a program that lost a call cannot end."""
        now_s = self._now_s()
        calls = [_LiveCall(each, now_s) for each in live.program.stage_calls(stage)]
        live.stages.append(calls)
        try:
            async with asyncio.TaskGroup() as group:
                for place, call in enumerate(calls):
                    group.create_task(self._run_call(live, place, call))
        except* RequestDropped:
            for call in calls:
                call.dropped = not call.ended
        return all(call.ended for call in calls)

    async def _run_call(self, live: _LiveProgram, place: int, call: _LiveCall) -> None:
        true_tokens = call.call.call.output_tokens
        assert true_tokens <= self._predictions.max_tokens, "an answer keeps to its caller's limit"
        request = ForcedRequest(
            request_id=call.call.call_id,
            prompt="",
            prompt_token_ids=self._prompt(live.number, place, call.call),
            output_tokens=true_tokens,
            max_tokens=self._predictions.max_tokens,
            temperature=0.0,
            slo=slo_of(live.program, call.call, call.submitted_s, self._predictions),
        )
        async for _ in self._engine.stream(request):
            call.times_s.append(self._now_s())
        call.ended = True

    def _prompt(self, number: int, place: int, call: StageCall) -> tuple[int, ...]:
        """Token ids that calls of a program share exactly where they share a prefix."""
        shared = call.call.shared_prefix_tokens
        own = self._token(f"{number}/{call.stage}/{place}")
        return (self._token(f"{number}"),) * shared + (own,) * (call.call.prompt_tokens - shared)

    def _token(self, name: str) -> int:
        return _FIRST_TOKEN + zlib.crc32(name.encode()) % (self._vocabulary - _FIRST_TOKEN)


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    """What went wrong first, without the groups of tasks around it."""
    error = failed.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _outcome(live: _LiveProgram) -> ProgramOutcome:
    calls = tuple(tuple(map(_call_outcome, stage)) for stage in live.stages)
    return outcome_of(live.program, calls, live.ended_s)


def _call_outcome(live: _LiveCall) -> CallOutcome:
    return CallOutcome(
        submitted_s=live.submitted_s,
        prompt_tokens=live.call.call.prompt_tokens,
        output_tokens=live.call.call.output_tokens,
        token_times_s=tuple(live.times_s),
        ended=live.ended,
        dropped=live.dropped,
    )
