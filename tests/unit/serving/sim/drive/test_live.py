"""The live driver on an engine that answers at once, and the scaling of workloads to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import EngineDied, RequestDropped
from serving.generation import Chunk, GenerationRequest
from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import EngineCapacity, ForcedRequest, replay_live
from serving.sim.drive.live_machine import calibration_lanes, measured_machine
from serving.sim.drive.live_scale import (
    REFERENCE,
    REFERENCE_SLOTS,
    LiveSettings,
    Scale,
    scale_of,
    scaled,
    scaled_load,
    scaled_predictions,
)
from serving.sim.metrics.metrics import EngineCounters
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import Source, generate_load, outcome_known_s
from serving.slo import SloKind
from serving.step_cost import Composition, StepSample
from serving.workload_errors import InvalidWorkload
from tests.strategies import law

FCFS = PolicySpec("fcfs")
LEARNED = Predictions(lengths=LengthErrors(), futures=FutureErrors(), max_tokens=500)
COUNTERS = EngineCounters(steps=7, preemptions=2)


@dataclass
class QuickEngine:
    """Answers each call at once, token by token; drops, stalls or fails on request."""

    drop: Callable[[str], bool] = lambda request_id: False
    stall: Callable[[str], bool] = lambda request_id: False
    error: Exception | None = None
    requests: list[ForcedRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    policies: list[PolicySpec] = field(default_factory=list)
    step_s: float = 0.01

    async def capacity(self) -> EngineCapacity:
        return EngineCapacity(256, 1024, 100, 32, 4096, 4096)

    async def reset(self, policy: PolicySpec) -> None:
        self.policies.append(policy)

    async def counters(self) -> EngineCounters:
        return COUNTERS

    async def samples(self) -> Sequence[StepSample]:
        return [
            StepSample(
                Composition(tokens, tokens, 100 * tokens, ((tokens, 0),)),
                self.step_s + 1e-4 * tokens,
            )
            for tokens in (1, 2, 3, 5, 8, 13, 21)
        ]

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        assert isinstance(request, ForcedRequest)
        self.requests.append(request)
        ended = False
        try:
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            if self.stall(request.request_id):
                await asyncio.Event().wait()
            if self.drop(request.request_id):
                raise RequestDropped(request.request_id, "it waited too long")
            for _ in range(request.output_tokens):
                await asyncio.sleep(0)
                yield Chunk("word")
            ended = True
        finally:
            if not ended:
                self.aborted.append(request.request_id)


def research(number: int = 0, *, tool_s: float = 0.01) -> Program:
    return Program(
        id=f"p{number}",
        application="research",
        kind=SloKind.COMPOUND,
        arrival_s=0.001 * number,
        stages=(
            Stage((Call(10, 5),)),
            Stage((Call(20, 8, 6), Call(30, 3, 4)), tool_s=tool_s),
            Stage((Call(30, 4),)),
        ),
        deadline_s=60.0,
    )


async def test_a_stage_starts_when_the_previous_one_has_ended_and_its_tools_have_run() -> None:
    programs = [research(number) for number in range(5)]
    engine = QuickEngine()
    replayed = await replay_live(programs, engine, policy=FCFS, predictor=LEARNED, until_s=60.0)
    assert replayed.counters == COUNTERS
    for program, outcome in zip(programs, replayed.programs, strict=True):
        assert outcome.finished
        lengths = [call.call.output_tokens for call in program.all_calls()]
        assert [len(call.token_times_s) for call in outcome.each_call()] == lengths
        assert outcome.calls[0][0].submitted_s >= program.arrival_s
        for stage, (before, after) in enumerate(pairwise(outcome.calls), start=1):
            ended_s = max(call.token_times_s[-1] for call in before)
            for call in after:
                assert call.submitted_s >= ended_s + program.stages[stage].tool_s


async def test_calls_have_the_slos_of_the_simulator_and_hide_their_length() -> None:
    program = research()
    engine = QuickEngine()
    replayed = await replay_live([program], engine, policy=FCFS, predictor=LEARNED, until_s=60.0)
    calls = list(program.all_calls())
    outcomes = list(replayed.programs[0].each_call())
    for call, outcome, request in zip(calls, outcomes, engine.requests, strict=True):
        assert request.request_id == call.call_id
        assert request.slo == LEARNED.slo_of(program, call, outcome.submitted_s)
        assert request.output_tokens == call.call.output_tokens
        assert request.max_tokens == LEARNED.max_tokens
        assert len(request.prompt_token_ids) == call.call.prompt_tokens
    assert engine.policies == [FCFS]


async def test_calls_of_a_program_share_exactly_their_prefix() -> None:
    engine = QuickEngine()
    programs = [research(0), research(1)]
    await replay_live(programs, engine, policy=FCFS, until_s=60.0)
    prompts = {request.request_id: request.prompt_token_ids for request in engine.requests}
    first, second, other = prompts["p0/1/0"], prompts["p0/1/1"], prompts["p1/1/0"]
    assert first[:4] == second[:4]
    assert first[6:] != second[6:20]
    assert first[0] != other[0]
    assert all(2 <= token < 4096 for prompt in prompts.values() for token in prompt)


async def test_a_dropped_call_ends_its_program_and_aborts_its_other_calls() -> None:
    engine = QuickEngine(
        drop=lambda request_id: request_id == "p0/1/1",
        stall=lambda request_id: request_id == "p0/1/0",
    )
    programs = [research(0), research(1)]
    replayed = await replay_live(programs, engine, policy=FCFS, until_s=60.0)
    dropped, finished = replayed.programs
    assert dropped.dropped
    assert not dropped.finished
    assert [call.dropped for call in dropped.calls[1]] == [True, True]
    assert len(dropped.calls) == 2
    assert set(engine.aborted) == {"p0/1/0", "p0/1/1"}
    assert finished.finished


async def test_programs_that_have_not_ended_by_the_end_are_aborted_and_reported() -> None:
    engine = QuickEngine(stall=lambda request_id: request_id.startswith("p0/1"))
    late = research(2)
    late = Program(
        id="late", application="", kind=SloKind.BEST_EFFORT, arrival_s=1e6, stages=late.stages
    )
    replayed = await replay_live([research(0), late], engine, policy=FCFS, until_s=0.3)
    stalled, not_arrived = replayed.programs
    assert replayed.ended_s <= 0.3
    assert set(engine.aborted) == {"p0/1/0", "p0/1/1"}
    assert not stalled.finished
    assert not stalled.dropped
    assert [call.ended for call in stalled.each_call()] == [True, False, False]
    assert not_arrived.calls == ()


async def test_a_failed_engine_raises_its_error() -> None:
    engine = QuickEngine(error=EngineDied("out of memory"))
    with pytest.raises(EngineDied, match="out of memory"):
        await replay_live([research()], engine, policy=FCFS, until_s=60.0)


def test_scaling_keeps_the_proportions_of_times() -> None:
    """Calls of half the length in steps of a quarter of the time: calls take an eighth."""
    scale = Scale(tokens=0.5, step=0.25)
    latency = Program(
        id="chat",
        application="chat",
        kind=SloKind.LATENCY,
        arrival_s=8.0,
        stages=(Stage((Call(100, 40),)),),
        ttft_s=2.0,
        tbt_s=0.1,
    )
    chat, compound = scaled([latency, research(tool_s=4.0)], scale, most_call_tokens=4096)
    assert (chat.arrival_s, chat.ttft_s, chat.tbt_s) == (1.0, 0.25, 0.025)
    assert chat.stages == (Stage((Call(50, 20),)),)
    assert compound.deadline_s == 7.5
    assert compound.stages[1] == Stage((Call(10, 4, 3), Call(15, 2, 2)), tool_s=0.5)


def test_a_load_is_scaled_with_its_window_and_its_predictions() -> None:
    source = Source.generator("mixed")
    load = generate_load(source, rate_per_s=2.0, seed=1, warmup_s=10.0, window_s=50.0)
    scale = Scale(tokens=0.5, step=0.4)
    small = scaled_load(load, scale, most_call_tokens=4096)
    assert small.window_s == pytest.approx((2.0, 12.0))
    assert len(small.programs) == len(load.programs)
    counted = [each for each in small.programs if 2.0 <= each.arrival_s < 12.0]
    assert max(map(outcome_known_s, counted)) <= small.decided_s * 1.01
    predictions = scaled_predictions(LEARNED, scale, most_call_tokens=4096)
    assert predictions.max_tokens == 250
    assert predictions.token_s == pytest.approx(LEARNED.token_s * 0.4)
    assert predictions.lengths == LEARNED.lengths


@pytest.mark.parametrize("name", ["mixed", "reasoning"])
def test_scaled_answers_are_within_max_tokens_and_the_context_fits_max_tokens(name: str) -> None:
    """Otherwise the engine would lower max_tokens to the answer's length, and so reveal it."""
    settings = LiveSettings()
    source, limit = Source.generator(name), settings.most_call_tokens
    load = generate_load(source, rate_per_s=5.0, seed=1, warmup_s=10.0, window_s=50.0)
    for tokens in (0.1, 0.5, 1.0):
        scale = Scale(tokens, 1.0)
        predictions = Predictions(max_tokens=source.max_tokens)
        max_tokens = scaled_predictions(predictions, scale, most_call_tokens=limit).max_tokens
        for program in scaled(load.programs, scale, most_call_tokens=limit):
            for call in program.all_calls():
                assert call.call.output_tokens <= max_tokens
                assert call.call.prompt_tokens + max_tokens <= settings.context_tokens


@law
@given(
    prompt=st.integers(1, 40_000),
    output=st.integers(1, 40_000),
    share=st.floats(0, 1),
    tokens=st.floats(0.01, 1),
    limit=st.integers(2, 8192),
)
def test_no_scaled_call_is_empty_or_longer_than_the_limit(
    prompt: int, output: int, share: float, tokens: float, limit: int
) -> None:
    program = Program(
        id="any",
        application="",
        kind=SloKind.LATENCY,
        arrival_s=0.0,
        stages=(Stage((Call(prompt, output, int(share * prompt)),)),),
    )
    [small] = scaled([program], Scale(tokens, 1.0), most_call_tokens=limit)
    assert small.prompt_tokens + small.output_tokens <= limit
    assert small.prompt_tokens <= max(round(prompt * tokens), 1)


def test_the_scale_of_the_reference_machine_is_1() -> None:
    settings = LiveSettings(slots=REFERENCE_SLOTS, length_scale=1.0)
    assert scale_of(REFERENCE, settings) == Scale(1.0, 1.0)


@pytest.mark.parametrize(
    "invalid",
    [
        {"slots": 0},
        {"step_tokens": 100},
        {"length_scale": 0.0},
        {"length_scale": 1.5},
        {"most_call_tokens": 1},
        {"most_call_tokens": 10**9},
    ],
)
def test_a_setting_out_of_range_raises_an_error_with_its_name(invalid: dict[str, float]) -> None:
    with pytest.raises(InvalidWorkload, match=next(iter(invalid))):
        LiveSettings(**invalid)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_the_machine_of_an_engine_has_its_step_cost_and_its_kv_cache() -> None:
    engine = QuickEngine(step_s=2.0)
    machine = await measured_machine(engine, LiveSettings(), calibration_s=0.1)
    assert machine.step_cost.seconds(Composition(10, 10, 1000, ((10, 0),))) == pytest.approx(2.001)
    assert machine.kv_tokens == 3200
    assert all(spec == FCFS for spec in engine.policies)


async def test_several_replicas_are_measured_with_more_lanes_than_one_has_slots() -> None:
    engine = QuickEngine()
    await measured_machine(engine, LiveSettings(), calibration_s=0.5, num_replicas=3)
    lanes = {each.request_id.partition("/")[0] for each in engine.requests}
    assert 256 < len(lanes) <= 3 * 256


def test_calibration_lanes_start_one_by_one_and_have_many_calls() -> None:
    lanes = calibration_lanes(LiveSettings(), num_lanes=8, ramp_s=4.0)
    assert [lane.arrival_s for lane in lanes] == [0.5 * index for index in range(8)]
    for lane in lanes:
        assert lane.kind is SloKind.BEST_EFFORT
        assert lane.tool_s == 0
        assert lane.num_calls > 100
        longest = max(
            call.call.prompt_tokens + call.call.output_tokens for call in lane.all_calls()
        )
        assert longest <= LiveSettings().most_call_tokens
