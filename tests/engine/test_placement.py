"""Waiting requests that rank better get slots, KV memory and tokens of running ones."""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from serving.engine.clients.embedded import EmbeddedEngine
from serving.policies.table import PolicySpec
from serving.slo import BEST_EFFORT, OnLate, Slo, SloKind, to_tags
from serving.view import Plan, StepView
from tests.engine.test_scheduler import tokens
from tests.engine.test_virtual import STEP_S, Clock, DriveLog, drive, engine_of, submit
from tests.engine.vllm_driver import Driver, Scripted, use_policy
from tests.strategies import PLAN_KINDS

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

MAX_EMPTY_STEPS = 100  # that of serving.engine.scheduler.placement, which imports vLLM

pytestmark = pytest.mark.usefixtures("imported_vllm")

TIGHT = Slo(kind=SloKind.DEADLINE, deadline_s=20.0)
LOOSE = Slo(kind=SloKind.DEADLINE, deadline_s=500.0)
CHOICE = ("yes", "no")


def run_steps(engine: VirtualEngine, clock: Clock, steps: int) -> DriveLog:
    """Run this many steps, even if there is nothing to compute."""
    log = DriveLog()
    for _ in range(steps):
        log.step(engine, clock)
    return log


# -- requests with a grammar ---------------------------------------------------------------------


def wait_for_grammars(driver: Driver, *names: str) -> None:
    """Wait without steps: vLLM compiles grammars outside the engine's thread."""
    pending = [driver.request(name).structured_output_request for name in names]
    limit = time.monotonic() + 60
    while not all(each.is_grammar_ready for each in pending):
        assert time.monotonic() < limit, "no grammar was compiled"
        time.sleep(0.005)


@pytest.mark.parametrize("num_first", [1, 2])
async def test_requests_with_a_grammar_get_the_slots_of_worse_running_requests(
    engine: EmbeddedEngine, num_first: int
) -> None:
    """vLLM itself checks a grammar only while a slot is free; here none is."""

    def work(llm: Any) -> None:
        driver = Driver(llm, PolicySpec("fcfs"))
        driver.scheduler.max_num_active_reqs = 2
        driver.submit("x", tokens("x", 30), max_tokens=300)
        driver.submit("y", tokens("y", 30), max_tokens=300)
        first = ["a", "b"][:num_first]
        script = Scripted(driver, "x", "y")
        driver.steps(3)
        for name in first:
            driver.submit(name, tokens(name, 30), max_tokens=20, choice=CHOICE)
        script.run(*first, *["x", "y"][num_first:])
        wait_for_grammars(driver, *first)
        driver.steps(num_first + 9)
        assert driver.unfinished() == ["x", "y"]
        driver.abort("x")
        driver.abort("y")

    await engine.call(work)


async def test_no_request_is_paused_for_one_whose_grammar_is_not_ready(
    engine: EmbeddedEngine,
) -> None:
    def work(llm: Any) -> None:
        driver = Driver(llm, PolicySpec("fcfs"))
        driver.scheduler.max_num_active_reqs = 1
        driver.submit("x", tokens("x", 30), max_tokens=40)
        script = Scripted(driver, "x")
        driver.steps(3)
        driver.submit("a", tokens("a", 30), max_tokens=20, choice=CHOICE)
        driver.request("a").structured_output_request.grammar = pending = Future()
        script.run("a", then=["x"])
        driver.steps(5)
        assert driver.running == ["x"]
        assert driver.request("x").num_preemptions == 0
        pending.set_exception(ValueError("it cannot be compiled"))
        driver.steps(3)
        assert driver.unfinished() == ["x"]
        script.run("x")
        driver.run()
        assert len(driver.requests["x"].tokens) == 40

    await engine.call(work)


def test_running_requests_continue_while_the_grammar_of_a_better_one_is_compiled() -> None:
    """It is in no plan until then, so no request is paused for a slot or for memory."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=40, max_model_tokens=640)
    for name in ("late 1", "late 2"):
        submit(engine, name, 250, 190, Slo(kind=SloKind.DEADLINE, deadline_s=0.02))
    run_steps(engine, clock, 20)
    params = SamplingParams(
        max_tokens=9,
        extra_args=to_tags(TIGHT),
        structured_outputs=StructuredOutputsParams(choice=list(CHOICE)),
    )
    request = Request("in time", [5] * 300, params, None)
    pending: Future[Any] = Future()
    request.structured_output_request.grammar = pending
    engine.scheduler.add_request(request)
    assert run_steps(engine, clock, 10).tokens == {"late 1": 10, "late 2": 10}
    assert planned_ids(engine) == ["late 1", "late 2"]
    engine.abort("in time")
    assert not engine.scheduler.placement.blocked
    assert set(drive(engine, clock).ended) == {"late 1", "late 2"}


# -- tokens of a step ----------------------------------------------------------------------------


def test_a_better_request_gets_a_slot_although_a_prefill_fills_every_step() -> None:
    """A prefill and a paused request hold both slots, and no step has tokens left."""
    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=400, max_model_tokens=4096)
    submit(engine, "decode", 10, 150, BEST_EFFORT)
    submit(engine, "long", 1920, 3, LOOSE)
    run_steps(engine, clock, 3)
    submit(engine, "short", 50, 3, TIGHT)
    assert run_steps(engine, clock, 8).tokens["short"] == 3
    assert drive(engine, clock).tokens["decode"] > 100


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "prompt_tokens"),
    [
        *product(["edf", "priority", "sjf", "srpt", "plas", "lsdf"], [100, 300]),
        *product(["calm", "calm_published", "slos_serve", "slai", "rad"], [300]),
    ],
)
def test_a_request_in_time_gets_the_memory_of_late_ones(policy: str, prompt_tokens: int) -> None:
    """There are four slots, and two late requests fill the KV cache for hundreds of steps."""
    late = Slo(kind=SloKind.DEADLINE, deadline_s=0.02)
    clock = Clock()
    engine = engine_of(clock, policy, kv_blocks=40, max_model_tokens=640)
    free = engine.free_blocks
    for name in ("late 1", "late 2"):
        submit(engine, name, 250, 190, late)
    run_steps(engine, clock, 20)
    assert engine.free_blocks * 16 < 100
    submit(engine, "in time", prompt_tokens, 3, TIGHT)
    assert run_steps(engine, clock, 20).tokens["in time"] == 3
    drive(engine, clock)
    assert engine.free_blocks == free


def test_no_request_is_evicted_for_one_that_does_not_fit_anyway() -> None:
    """It needs more memory than all paused requests hold; a better one holds the rest."""
    clock = Clock()
    engine = engine_of(clock, slots=4, kv_blocks=60, max_model_tokens=1024)
    script = FixedOrder(engine)
    for name, prompt_tokens in (("running", 500), ("paused 1", 60), ("paused 2", 60)):
        submit(engine, name, prompt_tokens, 190)
    script.run("running", "paused 1", "paused 2")
    run_steps(engine, clock, 20)
    submit(engine, "waiting", 800, 3)
    script.run("running", "waiting")
    assert run_steps(engine, clock, 10).tokens == {"running": 10}
    assert engine.preemptions == 0
    assert len(engine.scheduler.running) == 3


def test_no_request_is_evicted_for_one_that_would_get_no_tokens() -> None:
    """A better prefill fills every step, so the waiting request would compute nothing."""
    clock = Clock()
    engine = engine_of(clock, slots=2, kv_blocks=400, max_model_tokens=4096)
    script = FixedOrder(engine)
    submit(engine, "paused", 60, 190)
    submit(engine, "long", 1920, 3)
    script.run("paused", "long")
    run_steps(engine, clock, 3)
    submit(engine, "waiting", 50, 3)
    script.run("long", "waiting")
    run_steps(engine, clock, 15)
    assert [each.num_preemptions for each in engine.scheduler.running] == [0, 0]
    assert run_steps(engine, clock, 25).tokens["waiting"] == 3


@pytest.mark.parametrize("policy", ["edf", "lsdf"])
def test_a_request_that_vllm_refuses_causes_at_most_one_empty_step(policy: str) -> None:
    """Cached blocks that no request holds count as free, until a request takes them."""
    clock = Clock()
    engine = engine_of(clock, policy, slots=4, prefix_caching=True, max_model_tokens=640)
    submit(engine, "first", 300, 2)
    drive(engine, clock)
    engine.submit("prefill", prompt=[6] * 400, output_tokens=3, slo=LOOSE, max_tokens=200)
    run_steps(engine, clock, 2)
    submit(engine, "again", 320, 3, TIGHT)
    log = DriveLog()
    for number in range(12):
        engine.scheduler.planner.plan_due = True
        engine.submit(
            f"next {number}", prompt=[9] * 3, output_tokens=1, slo=BEST_EFFORT, max_tokens=1
        )
        log.step(engine, clock)
    assert sum(not step.new_tokens for step, _ in log.trace) <= 1
    assert drive(engine, clock).tokens["again"] + log.tokens["again"] == 3


class FixedOrder:
    """A policy that runs the requests that the test names, in that order; the others follow."""

    def __init__(self, engine: VirtualEngine) -> None:
        self._engine = engine
        self._run: tuple[str, ...] = ()
        use_policy(engine.scheduler, self)

    def run(self, *names: str) -> None:
        self._run = names
        self._engine.scheduler.planner.plan_due = True

    def __call__(self, view: StepView) -> Plan:
        present = view.requests.request_id.tolist()
        run = [name for name in self._run if name in present] or present[:1]
        others = [name for name in present if name not in run]
        return Plan(order=(*run, *others), run=frozenset(run), steps=50)


# -- sessions with streamed input ----------------------------------------------------------------


def add(
    engine: VirtualEngine, session: str, output_tokens: int, *, prompt_tokens: int = 20
) -> None:
    """Add a part of a session's input."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        session,
        [5] * prompt_tokens,
        SamplingParams(max_tokens=output_tokens),
        None,
        resumable=True,
        block_hasher=engine._block_hasher,
    )
    engine._output_tokens[session] = 10**6  # so that max_tokens ends it
    engine.scheduler.add_request(request)


def test_the_time_between_a_session_s_inputs_is_not_measured_as_a_step() -> None:
    clock = Clock()
    engine = engine_of(clock)
    for _ in range(100):
        add(engine, "session", 2, prompt_tokens=1)
        run_steps(engine, clock, 2)
        clock.now_s += 10.0
    assert engine.scheduler.lifecycle.tracker.token_s == pytest.approx(STEP_S, rel=0.1)


def planned_ids(engine: VirtualEngine) -> list[str]:
    """Ids of the requests that a policy would see now."""
    return engine.scheduler.view().requests.request_id.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["fcfs", "edf", "calm"])
def test_a_session_that_waits_for_input_is_in_no_plan(policy: str) -> None:
    clock = Clock()
    engine = engine_of(clock, policy, slots=4)
    for number in range(3):
        add(engine, f"session {number}", 4)
    for _ in range(20):
        if not engine.has_work:
            break
        run_steps(engine, clock, 1)
    assert engine.scheduler.num_waiting_for_streaming_input == 3
    assert planned_ids(engine) == []
    submit(engine, "other", 30, 5)
    submit(engine, "last", 30, 5)
    assert drive(engine, clock).tokens == {"other": 5, "last": 5}

    clock.now_s += 100.0
    add(engine, "session 1", 6)
    requests = engine.scheduler.view().requests
    assert requests.request_id.tolist() == ["session 1"]
    assert requests.arrival_s.tolist() == [clock.now_s]
    assert run_steps(engine, clock, 8).tokens == {"session 1": 6}


@pytest.mark.parametrize("state", ["idle", "running"])
def test_a_session_that_ends_leaves_nothing_behind(state: str) -> None:
    from vllm.v1.request import RequestStatus

    from tests.engine.vllm_driver import remaining_in

    clock = Clock()
    engine = engine_of(clock, "calm")
    free = engine.free_blocks
    add(engine, "session", 4)
    run_steps(engine, clock, 8 if state == "idle" else 2)
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    submit(engine, "other", 30, 5)
    assert drive(engine, clock).tokens == {"other": 5}
    left = remaining_in(engine.scheduler)
    assert left.pop("kv blocks") == free
    assert not any(left.values()), left


def test_a_session_that_is_paused_during_its_last_step_is_not_paused_afterwards() -> None:
    """Under asynchronous scheduling the next step is planned before the last one has ended."""
    clock = Clock()
    engine = engine_of(clock)
    add(engine, "session", 1)
    submit(engine, "other", 20, 30)
    engine.plan_step()
    engine.scheduler.placement.follow({"other": 0}, {"other"})
    assert engine.scheduler.placement.paused
    engine.finish_step()
    assert not engine.scheduler.placement.paused
    assert planned_ids(engine) == ["other"]
    add(engine, "session", 5)
    assert drive_until_idle(engine, clock).tokens == {"other": 29, "session": 5}


def drive_until_idle(engine: VirtualEngine, clock: Clock) -> DriveLog:
    """Run steps until all remaining requests wait for input."""
    log = DriveLog()
    for _ in range(500):
        if not planned_ids(engine):
            return log
        log.step(engine, clock)
    raise AssertionError("still working")


def test_parts_of_sessions_do_not_count_in_the_default_length() -> None:
    clock = Clock()
    engine = engine_of(clock)
    for number in range(3):
        add(engine, f"session {number}", 1)
    drive_until_idle(engine, clock)
    submit(engine, "answer", 20, 30)
    assert not engine.scheduler.view().requests.default_length.any()


def test_a_session_s_new_input_is_computed_before_a_worse_running_prefill() -> None:
    """vLLM keeps the session in another queue, because it holds KV cache."""
    clock = Clock()
    engine = engine_of(clock, kv_blocks=400, max_model_tokens=4096)
    script = FixedOrder(engine)
    add(engine, "session", 4)
    run_steps(engine, clock, 8)
    submit(engine, "long", 1920, 3)
    script.run("long")
    run_steps(engine, clock, 2)
    add(engine, "session", 4)
    script.run("session", "long")
    assert sorted(tokens for tokens, _ in engine.plan_step().prefill_chunks) == [20, 44]
    clock.now_s += STEP_S
    engine.finish_step()
    assert run_steps(engine, clock, 4).tokens["session"] == 3


# -- an engine that vLLM pauses --------------------------------------------------------------


def test_running_requests_end_while_vllm_admits_no_new_ones() -> None:
    """vLLM's pause waits for them, so a request that a plan has paused must not block it."""
    from vllm.v1.core.sched.interface import PauseState

    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=400, max_model_tokens=4096)
    for name in ("a", "b"):
        submit(engine, name, 20, 60, LOOSE)
    run_steps(engine, clock, 3)
    for name in ("c", "d"):
        submit(engine, name, 20, 60, TIGHT)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert set(run_steps(engine, clock, 62).ended) == {"a", "b"}
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert set(drive(engine, clock).ended) == {"c", "d"}


def test_a_pause_of_the_engine_resumes_requests_that_a_plan_has_paused() -> None:
    from vllm.v1.core.sched.interface import PauseState

    clock = Clock()
    engine = engine_of(clock, "calm", slots=4)
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=500.0, on_late=OnLate.CONTINUE)
    submit(engine, "a", 20, 60, slo)
    run_steps(engine, clock, 3)
    engine.scheduler.placement.follow({"a": 0}, frozenset())
    assert engine.scheduler.placement.paused
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    run_steps(engine, clock, 1)
    assert not engine.scheduler.placement.paused
    assert set(drive(engine, clock).ended) == {"a"}


# -- decisions of vLLM outside the plan -----------------------------------------------------------


def test_a_session_with_new_input_gets_the_memory_of_a_paused_request() -> None:
    """It holds KV cache while it waits, and vLLM admits no other request before it."""
    clock = Clock()
    engine = engine_of(clock, slots=4, step_tokens=256, kv_blocks=41, max_model_tokens=640)
    script = FixedOrder(engine)
    add(engine, "session", 4, prompt_tokens=100)
    script.run("session")
    run_steps(engine, clock, 6)
    submit(engine, "running", 420, 150)
    script.run("running")
    run_steps(engine, clock, 6)
    add(engine, "session", 4, prompt_tokens=200)
    script.run("session")
    assert run_steps(engine, clock, 10).tokens["session"] == 4


def test_an_engine_without_progress_evicts_paused_requests(monkeypatch: Any) -> None:
    """Whatever the reason; here a transfer is pending while another request holds a slot."""
    clock = Clock()
    engine = engine_of(clock, slots=4)
    script = FixedOrder(engine)
    submit(engine, "paused", 20, 50)
    script.run("paused")
    run_steps(engine, clock, 5)
    scheduler = engine.scheduler
    monkeypatch.setattr(scheduler, "_ec_transfer_pending", lambda *_: bool(scheduler.running))
    submit(engine, "waiting", 20, 50)
    script.run("waiting")
    assert run_steps(engine, clock, MAX_EMPTY_STEPS).tokens == {}
    assert run_steps(engine, clock, 51).tokens["waiting"] == 50


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_without_chunked_prefill_each_prompt_is_computed_in_one_step(
    policy: str, monkeypatch: Any
) -> None:
    """Else a prompt longer than the plan's budget of a step would never be admitted."""
    import serving.sim.drive.virtual_engine

    arguments_of = serving.sim.drive.virtual_engine._engine_arguments

    def without_chunks(config: Any) -> Any:
        arguments = arguments_of(config)
        arguments.enable_chunked_prefill = False
        return arguments

    monkeypatch.setattr(serving.sim.drive.virtual_engine, "_engine_arguments", without_chunks)
    clock = Clock()
    engine = engine_of(clock, policy, step_tokens=512, kv_blocks=200)
    stream = Slo(kind=SloKind.LATENCY, ttft_s=5.0, tbt_s=0.05)
    for number in range(2):
        submit(engine, f"stream {number}", 30, 100, stream)
    run_steps(engine, clock, 5)
    submit(engine, "long", 400, 5, TIGHT)
    chunks = [step.prefill_chunks for step, _ in drive(engine, clock).trace]
    assert [each for each in chunks if each] == [((400, 0),)]
