"""VirtualEngine: the production scheduler without a model; its steps, its ends, its memory."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.http_engine import sample_of
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.baselines.orderings import fcfs
from serving.policies.table import POLICIES, PolicySpec
from serving.sim.metrics.metrics import EngineCounters
from serving.slo import BEST_EFFORT, OnLate, Slo, SloKind
from tests.engine.vllm_driver import use_policy
from tests.strategies import PLAN_KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from serving.sim.drive.stepped import Ended, Progress
    from serving.sim.drive.virtual_engine import VirtualEngine
    from serving.step_cost import Composition

pytestmark = pytest.mark.usefixtures("imported_vllm")

STEP_S = 0.02

DRAFTS = {"drafted_tokens": 4, "accepted_tokens": 2}


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def engine_of(clock: Clock, policy: str = "fcfs", **changes: int) -> VirtualEngine:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    small = VirtualConfig(
        policy=PolicySpec(policy),
        slots=4,
        step_tokens=64,
        kv_blocks=40,
        max_model_tokens=512,
    )
    return VirtualEngine(replace(small, **changes), clock)


class DriveLog:
    """The steps of a drive, and each request's tokens and end."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()
        self.ended: dict[str, Ended] = {}
        self.trace: list[tuple[Composition, Progress]] = []

    def step(self, engine: VirtualEngine, clock: Clock) -> None:
        """Run a step, which takes STEP_S."""
        composition = engine.plan_step()
        clock.now_s += STEP_S
        progress = engine.finish_step()
        self.trace.append((composition, progress))
        self.tokens.update(progress.tokens)
        self.ended.update({end.request_id: end for end in progress.ended})


def drive(engine: VirtualEngine, clock: Clock, *, limit: int = 5000) -> DriveLog:
    log = DriveLog()
    for _ in range(limit):
        if not engine.has_work:
            return log
        log.step(engine, clock)
    raise AssertionError("still working")


def submit(
    engine: VirtualEngine,
    request_id: str,
    prompt_tokens: int,
    output_tokens: int,
    slo: Slo = BEST_EFFORT,
) -> None:
    engine.submit(
        request_id,
        prompt=[5] * prompt_tokens,
        output_tokens=output_tokens,
        slo=slo,
        max_tokens=200,
    )


@pytest.mark.parametrize("drafts", [{}, DRAFTS], ids=["plain", "drafts"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_its_given_length_and_frees_its_blocks(
    policy: str, drafts: dict[str, int]
) -> None:
    """Also under memory pressure: eight requests do not fit into the blocks together."""
    clock = Clock()
    engine = engine_of(clock, policy, **drafts)
    free = engine.free_blocks
    lengths = {f"r{number}": 1 + 13 * number for number in range(8)}
    for name, length in lengths.items():
        submit(engine, name, 90, length)
    log = drive(engine, clock)
    assert log.tokens == lengths
    assert {end.finish_reason for end in log.ended.values()} == {"stop"}
    assert engine.free_blocks == free


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_the_same_seed_gives_the_same_steps(policy: str) -> None:
    traces = []
    for _ in range(2):
        clock, chance = Clock(), random.Random(7)
        engine = engine_of(clock, policy)
        for number in range(12):
            deadline_s = chance.uniform(0.1, 5.0)
            slo = Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s)
            submit(engine, f"r{number}", chance.randint(1, 150), chance.randint(1, 60), slo)
        traces.append(drive(engine, clock).trace)
    assert traces[0] == traces[1]


def test_a_step_s_composition_has_its_prefill_chunks_and_decodes() -> None:
    clock = Clock()
    engine = engine_of(clock)
    submit(engine, "long", 100, 3)
    first = engine.plan_step()
    assert (first.new_tokens, first.prefill_chunks) == (64, ((64, 0),))
    assert engine.finish_step().tokens == ()
    submit(engine, "short", 10, 2)
    second = engine.plan_step()
    assert second.prefill_chunks == ((36, 64), (10, 0))
    assert set(engine.finish_step().tokens) == {"long", "short"}
    third = engine.plan_step()
    assert (third.num_decodes, third.decode_context_tokens) == (2, 110)
    assert third.prefill_chunks == ()


def test_a_request_that_the_scheduler_drops_has_a_stop_reason() -> None:
    clock = Clock()
    engine = engine_of(clock, slots=1)
    submit(engine, "first", 10, 50)
    too_tight = Slo(kind=SloKind.DEADLINE, deadline_s=0.05, on_late=OnLate.DROP)
    submit(engine, "late", 10, 50, too_tight)
    log = drive(engine, clock)
    assert log.ended["first"].finish_reason == "stop"
    assert log.ended["late"].finish_reason == "abort"
    assert log.ended["late"].stop_reason


def test_an_aborted_request_frees_its_blocks() -> None:
    clock = Clock()
    engine = engine_of(clock)
    free = engine.free_blocks
    submit(engine, "aborted", 100, 50)
    engine.plan_step()
    engine.finish_step()
    assert engine.free_blocks < free
    engine.abort("aborted")
    drive(engine, clock)
    assert engine.free_blocks == free


def test_no_chunk_exceeds_the_plan_s_limit() -> None:
    """The tokens that one prompt leaves of a step go to the next prompt."""
    clock = Clock()
    engine = engine_of(clock)
    use_policy(engine.scheduler, lambda view: fcfs(view)._replace(chunk_tokens=16))
    for name in "abc":
        submit(engine, name, 100, 3)
    first = engine.plan_step()
    assert first.prefill_chunks == ((16, 0), (16, 0), (16, 0))
    engine.finish_step()
    chunks = [chunk for step in compositions(engine, clock) for chunk in step.prefill_chunks]
    sizes = [tokens for tokens, _ in chunks]
    assert max(sizes) == 16
    assert sum(sizes) == 3 * (100 - 16)


def test_a_plan_without_a_limit_on_chunks_restores_the_engine_s_own() -> None:
    clock = Clock()
    engine = engine_of(clock)
    use_policy(engine.scheduler, lambda view: fcfs(view)._replace(chunk_tokens=8))
    submit(engine, "a", 100, 3)
    submit(engine, "b", 100, 3)
    assert engine.plan_step().prefill_chunks == ((8, 0), (8, 0))
    engine.finish_step()
    use_policy(engine.scheduler, fcfs)
    assert engine.plan_step().prefill_chunks == ((64, 8),)


def test_the_limit_on_chunks_does_not_apply_to_a_single_request() -> None:
    """vLLM's own exception: a long chunk would delay no other request."""
    engine = engine_of(Clock())
    use_policy(engine.scheduler, lambda view: fcfs(view)._replace(chunk_tokens=16))
    submit(engine, "a", 100, 3)
    assert engine.plan_step().prefill_chunks == ((64, 0),)


def test_no_step_exceeds_the_plan_s_token_budget() -> None:
    clock = Clock()
    engine = engine_of(clock)
    use_policy(engine.scheduler, lambda view: fcfs(view)._replace(step_tokens=10))
    submit(engine, "a", 100, 3)
    submit(engine, "b", 50, 3)
    steps = compositions(engine, clock)
    assert max(step.new_tokens for step in steps) == 10


def test_with_a_prefix_cache_a_shared_prefix_is_computed_once() -> None:
    """In whole blocks of 16 tokens, and never a prompt's last token."""
    for caching, cached_tokens in ((False, 0), (True, 48)):
        clock = Clock()
        engine = engine_of(clock, prefix_caching=caching)
        free = engine.free_blocks
        submit(engine, "first", 60, 3)
        drive(engine, clock)
        submit(engine, "again", 60, 3)
        [(_, context)] = engine.plan_step().prefill_chunks
        assert context == cached_tokens
        engine.finish_step()
        assert drive(engine, clock).tokens == {"again": 2}
        assert engine.free_blocks == free


def test_the_size_of_blocks_can_be_set() -> None:
    for block_tokens, num_held in ((16, 4), (32, 2)):
        engine = engine_of(Clock(), block_tokens=block_tokens)
        free = engine.free_blocks
        submit(engine, "a", 60, 3)
        engine.plan_step()
        assert free - engine.free_blocks == num_held


def compositions(engine: VirtualEngine, clock: Clock) -> list[Composition]:
    """The composition of each step of a drive."""
    return [step for step, _ in drive(engine, clock).trace]


@pytest.mark.parametrize("is_v2", [False, True])
def test_the_value_of_a_program_does_not_depend_on_how_often_it_is_computed(is_v2: bool) -> None:
    """Each token of its calls counts once, if it is cached or recomputed after a preemption too.

    vLLM's newer model runner gets a resumed request as if it were new.
    """
    from serving.policies.calm.program_demand import calls_of, present_programs

    clock = Clock()
    engine = engine_of(clock, prefix_caching=True, kv_blocks=100)
    scheduler = engine.scheduler
    scheduler.use_v2_model_runner = is_v2

    def value() -> dict[str, float]:
        view = scheduler.view()
        programs = present_programs(view, calls_of(view.requests, view.model))
        names = view.requests.slo[programs.first]
        return {slo.program: tokens for slo, tokens in zip(names, programs.tokens, strict=True)}

    def cached_tokens() -> dict[str, int]:
        requests = scheduler.lifecycle.ledger.requests(scheduler.running, ())
        return dict(zip(requests.request_id, requests.cached_tokens.tolist(), strict=True))

    def run_steps(steps: int) -> None:
        for _ in range(steps):
            engine.plan_step()
            clock.now_s += STEP_S
            engine.finish_step()

    length = LengthSketch((20.0,) * len(LENGTH_LEVELS))
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=90, final_s=200, program="first", length=length)
    submit(engine, "a/0", 160, 20, slo)
    run_steps(5)
    submit(engine, "b/0", 160, 20, replace(slo, program="second"))  # all but a block is cached
    assert value() == {"first": 180.0, "second": 180.0}
    assert cached_tokens() == {"a/0": 0, "b/0": 144}
    run_steps(4)
    assert scheduler.requests["b/0"].num_computed_tokens > 160
    assert cached_tokens() == {"a/0": 0, "b/0": 144}
    assert value() == {"first": 180.0, "second": 180.0}
    for _ in range(3):
        scheduler.placement.evict(scheduler.running[0])
        run_steps(2)
    assert value() == {"first": 180.0, "second": 180.0}
    assert cached_tokens() == {"a/0": 0, "b/0": 144}
    while "a/0" in scheduler.requests:
        run_steps(1)
    submit(engine, "a/1", 160, 20, replace(slo, program="first", stage=1))
    assert value()["first"] == 360.0
    run_steps(2)
    engine.abort("a/1")
    submit(engine, "a/2", 160, 20, replace(slo, program="first", stage=1))
    assert value()["first"] == 360.0  # an aborted call does not count


def test_more_input_for_a_session_does_not_add_a_second_request() -> None:
    """vLLM adds every part of a session's streamed input under the same id."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request, RequestStatus

    clock = Clock()
    engine = engine_of(clock, "calm", prefix_caching=True)
    scheduler = engine.scheduler

    def add(tokens: int, max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        scheduler.add_request(
            Request(
                "session",
                [5] * tokens,
                params,
                None,
                resumable=True,
                block_hasher=engine._block_hasher,
            )
        )

    add(20, 4)
    engine._output_tokens["session"] = 4
    views = [scheduler.view().requests[0]]
    for _ in range(8):
        if not engine.has_work:
            break
        engine.plan_step()
        clock.now_s += STEP_S
        engine.finish_step()
    add(300, 40)
    view = scheduler.view()
    plan = scheduler.planner.decide(view)
    assert plan.run == {"session"}
    views += view.requests
    assert [(each.prompt_tokens, each.max_tokens) for each in views] == [(20, 4), (323, 40)]
    scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    assert len(scheduler.lifecycle.ledger.requests([], ())) == 0


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_production_and_simulator_count_the_same_preemptions(runner: str) -> None:
    """vLLM's newer model runner gets a resumed request as if it were new."""
    from serving.sim.drive.counting_scheduler import CountingScheduler
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    class Counting(VirtualEngine):
        scheduler_class = CountingScheduler

    clock = Clock()
    spec = PolicySpec("edf", {"batch": 1})
    engine = Counting(
        VirtualConfig(policy=spec, slots=4, step_tokens=256, kv_blocks=41, max_model_tokens=640),
        clock,
    )
    engine.scheduler.use_v2_model_runner = runner == "v2"
    for number in range(4):
        submit(engine, f"{number}", 300, 50, Slo(kind=SloKind.DEADLINE, deadline_s=60 - number))
        for _ in range(8):
            engine.plan_step()
            clock.now_s += STEP_S
            engine.finish_step()
    drive(engine, clock)
    counters = engine.scheduler.counters()
    assert (counters.preemptions, counters.recomputed_tokens) == (
        engine.preemptions,
        engine.recomputed_tokens,
    )
    assert counters.preemptions == 3
    assert not engine.scheduler._lost_tokens


def test_an_idle_engine_tells_routers_that_nothing_is_left_of_requests_aborted_together() -> None:
    """vLLM takes all of them out of its queues before it frees the first."""
    from vllm.v1.request import RequestStatus

    class Sender:
        """Keeps the statuses that are sent, as many as StatusSender would send."""

        def __init__(self) -> None:
            self.statuses: list[dict[str, Any]] = []
            self._is_idle = False

        def is_due(self, now_s: float, *, is_idle: bool) -> bool:
            return is_idle and not self._is_idle

        def send(self, status: dict[str, Any], now_s: float, *, is_idle: bool) -> None:
            self._is_idle = is_idle
            self.statuses.append(status)

    clock = Clock()
    engine = engine_of(clock)
    engine.scheduler._status_sender = sender = Sender()
    for number in range(6):  # more than there are slots
        submit(engine, f"{number}", 20, 10, BEST_EFFORT)
    engine.plan_step()
    engine.finish_step()
    engine.scheduler.finish_requests([f"{n}" for n in range(6)], RequestStatus.FINISHED_ABORTED)
    snapshot = sender.statuses[-1]["snapshot"]
    assert (snapshot["num_running"], snapshot["num_waiting"], snapshot["work_s"]) == (0, 0, 0.0)
    assert len(sender.statuses) == 1


def test_a_replica_of_the_benchmark_writes_what_it_measured_and_forgets_it(tmp_path: Path) -> None:
    from benchmarks.recording_scheduler import FILE_KEY, RecordingScheduler
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    class Recording(VirtualEngine):
        scheduler_class = RecordingScheduler

    clock, file = Clock(), tmp_path / "steps.json"
    spec = PolicySpec("edf", {"batch": 2})
    config = VirtualConfig(policy=spec, slots=4, step_tokens=64, kv_blocks=40, max_model_tokens=512)
    engine = Recording(config, clock)
    scheduler = engine.scheduler
    scheduler.vllm_config.additional_config = {FILE_KEY: str(file)}
    submit(engine, "a", 100, 5, Slo(kind=SloKind.DEADLINE, deadline_s=9.0))
    drive(engine, clock)
    samples, counters = scheduler.samples(), scheduler.counters()
    assert counters.steps > len(samples) > 0
    scheduler.reset_prefix_cache()
    document = json.loads(file.read_text())
    assert [sample_of(each) for each in document["samples"]] == list(samples)
    assert EngineCounters(**document["counters"]) == counters
    assert (scheduler.counters().steps, scheduler.samples()) == (0, ())
    assert scheduler.planner.spec == spec
    assert len(scheduler.lifecycle.ledger.arrivals()[0]) == 0
