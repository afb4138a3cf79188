"""Who is better in the plan and waits gets a slot, memory and a step's tokens from who is worse."""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from serving.engine.clients.embedded import EmbeddedEngine
from serving.policies.table import POLICIES, PolicySpec
from serving.slo import BEST_EFFORT, OnLate, Slo, SloKind, to_tags
from serving.view import Plan, StepView
from tests.engine.test_scheduler import tokens
from tests.engine.test_virtual import STEP_S, Clock, Seen, drive, engine_of, submit
from tests.engine.vllm_driver import Driver, Scripted, decide_by

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

MOST_EMPTY_STEPS = 100  # as serving.engine.scheduler.placement has it, which imports vLLM

pytestmark = pytest.mark.usefixtures("imported_vllm")

SOON = Slo(kind=SloKind.DEADLINE, deadline_s=20.0)
LATER = Slo(kind=SloKind.DEADLINE, deadline_s=500.0)
CHOICE = ("yes", "no")


def go_on(engine: VirtualEngine, clock: Clock, steps: int) -> Seen:
    """So many steps, whether or not there is something to do."""
    seen = Seen()
    for _ in range(steps):
        seen.step(engine, clock)
    return seen


# -- calls with a grammar ------------------------------------------------------------------------


def wait_for_grammars(driver: Driver, *names: str) -> None:
    """vLLM compiles them beside the engine's thread, each in its own time: no step is taken."""
    asked = [driver.request(name).structured_output_request for name in names]
    limit = time.monotonic() + 60
    while not all(each.is_grammar_ready for each in asked):
        assert time.monotonic() < limit, "no grammar came"
        time.sleep(0.005)


@pytest.mark.parametrize("num_first", [1, 2])
async def test_calls_with_a_grammar_take_the_slots_of_worse_calls_that_run(
    engine: EmbeddedEngine, num_first: int
) -> None:
    """vLLM asks for a grammar only while it has a slot to give; here it has none."""

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


async def test_nobody_gives_way_to_a_grammar_that_is_not_ready(engine: EmbeddedEngine) -> None:
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


def test_who_runs_goes_on_while_the_grammar_of_a_better_call_is_compiled() -> None:
    """It is in no plan until then: nobody pauses for it, neither for its slot nor its memory."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=40, max_model_tokens=640)
    for name in ("late 1", "late 2"):
        submit(engine, name, 250, 190, Slo(kind=SloKind.DEADLINE, deadline_s=0.02))
    go_on(engine, clock, 20)
    params = SamplingParams(
        max_tokens=9,
        extra_args=to_tags(SOON),
        structured_outputs=StructuredOutputsParams(choice=list(CHOICE)),
    )
    request = Request("in time", [5] * 300, params, None)
    pending: Future[Any] = Future()
    request.structured_output_request.grammar = pending
    engine.scheduler.add_request(request)
    seen = go_on(engine, clock, 10)
    assert seen.tokens == {"late 1": 10, "late 2": 10}
    assert views_of(engine) == ["late 1", "late 2"]
    engine.abort("in time")
    assert not engine.scheduler.placement.blocked
    assert set(drive(engine, clock).ended) == {"late 1", "late 2"}


# -- who reads -----------------------------------------------------------------------------------


def test_a_slot_is_given_to_who_is_better_although_a_prompt_takes_all_tokens_of_a_step() -> None:
    """Both slots are taken, by a long prompt and by one that is paused; no step has tokens left."""
    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=400, max_model_tokens=4096)
    submit(engine, "decode", 10, 150, BEST_EFFORT)
    submit(engine, "long", 1920, 3, LATER)
    go_on(engine, clock, 3)
    submit(engine, "short", 50, 3, SOON)
    seen = go_on(engine, clock, 8)
    assert seen.tokens["short"] == 3
    assert drive(engine, clock).tokens["decode"] > 100


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "prompt_tokens"),
    [
        *product(["edf", "priority", "sjf", "srpt", "plas", "lsdf"], [100, 300]),
        *product(["calm", "calm_published", "slos_serve", "slai", "rad"], [300]),
    ],
)
def test_late_work_gives_its_memory_to_work_in_time(policy: str, prompt_tokens: int) -> None:
    """Slots for four, and a memory that two late requests fill for hundreds of steps."""
    late = Slo(kind=SloKind.DEADLINE, deadline_s=0.02)
    clock = Clock()
    engine = engine_of(clock, policy, kv_blocks=40, max_model_tokens=640)
    free = engine.free_blocks
    for name in ("late 1", "late 2"):
        submit(engine, name, 250, 190, late)
    go_on(engine, clock, 20)
    assert engine.free_blocks * 16 < 100
    submit(engine, "in time", prompt_tokens, 3, SOON)
    seen = go_on(engine, clock, 20)
    assert seen.tokens["in time"] == 3
    drive(engine, clock)
    assert engine.free_blocks == free


def test_nobody_loses_memory_for_one_who_cannot_come_in_anyway() -> None:
    """It wants more than all who pause have: another, who is better, holds the rest."""
    clock = Clock()
    engine = engine_of(clock, slots=4, kv_blocks=60, max_model_tokens=1024)
    script = Ordered(engine)
    for name, prompt_tokens in (("holds", 500), ("pauses 1", 60), ("pauses 2", 60)):
        submit(engine, name, prompt_tokens, 190)
    script.run("holds", "pauses 1", "pauses 2")
    go_on(engine, clock, 20)
    submit(engine, "wants", 800, 3)
    script.run("holds", "wants")
    seen = go_on(engine, clock, 10)
    assert seen.tokens == {"holds": 10}
    assert engine.preemptions == 0
    assert len(engine.scheduler.running) == 3


def test_nobody_loses_memory_before_a_step_has_tokens_for_whom_it_is() -> None:
    """A long prompt that is better takes every step whole; who waits would read nothing."""
    clock = Clock()
    engine = engine_of(clock, slots=2, kv_blocks=400, max_model_tokens=4096)
    script = Ordered(engine)
    submit(engine, "pauses", 60, 190)
    submit(engine, "long", 1920, 3)
    script.run("pauses", "long")
    go_on(engine, clock, 3)
    submit(engine, "wants", 50, 3)
    script.run("long", "wants")
    go_on(engine, clock, 15)
    assert [each.num_preemptions for each in engine.scheduler.running] == [0, 0]
    assert go_on(engine, clock, 25).tokens["wants"] == 3


@pytest.mark.parametrize("policy", ["edf", "lsdf"])
def test_no_step_is_empty_twice_for_one_whom_vllm_refuses(policy: str) -> None:
    """What it finds in the cache and nobody holds counts as free, until it takes it."""
    clock = Clock()
    engine = engine_of(clock, policy, slots=4, prefix_caching=True, max_model_tokens=640)
    submit(engine, "first", 300, 2)
    drive(engine, clock)
    engine.submit("reads", prompt=[6] * 400, output_tokens=3, slo=LATER, max_tokens=200)
    go_on(engine, clock, 2)
    submit(engine, "again", 320, 3, SOON)
    seen = Seen()
    for number in range(12):
        engine.scheduler.planner.plan_due = True
        engine.submit(
            f"next {number}", prompt=[9] * 3, output_tokens=1, slo=BEST_EFFORT, max_tokens=1
        )
        seen.step(engine, clock)
    assert sum(not step.new_tokens for step, _ in seen.trace) <= 1
    assert drive(engine, clock).tokens["again"] + seen.tokens["again"] == 3


class Ordered:
    """Runs whom it is told to, in that order; the others come after them."""

    def __init__(self, engine: VirtualEngine) -> None:
        self._engine = engine
        self._run: tuple[str, ...] = ()
        decide_by(engine.scheduler, self)

    def run(self, *names: str) -> None:
        self._run = names
        self._engine.scheduler.planner.plan_due = True

    def __call__(self, view: StepView) -> Plan:
        here = view.requests.request_id.tolist()
        run = [name for name in self._run if name in here] or here[:1]
        others = [name for name in here if name not in run]
        return Plan(order=(*run, *others), run=frozenset(run), steps=50)


# -- sessions whose input is streamed ------------------------------------------------------------


def add(
    engine: VirtualEngine, session: str, output_tokens: int, *, prompt_tokens: int = 20
) -> None:
    """One more part of a session's input."""
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
    engine._output_tokens[session] = 10**6  # its limit ends it, not its length
    engine.scheduler.add_request(request)


def test_the_silence_between_a_session_s_inputs_is_no_step() -> None:
    clock = Clock()
    engine = engine_of(clock)
    for _ in range(100):
        add(engine, "session", 2, prompt_tokens=1)
        go_on(engine, clock, 2)
        clock.now_s += 10.0
    assert engine.scheduler.lifecycle.tracker.token_s == pytest.approx(STEP_S, rel=0.1)


def views_of(engine: VirtualEngine) -> list[str]:
    """Who is in the plans."""
    return engine.scheduler.view().requests.request_id.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["fcfs", "edf", "calm"])
def test_a_session_that_waits_for_input_is_in_no_plan_and_takes_nobody_s_turn(policy: str) -> None:
    clock = Clock()
    engine = engine_of(clock, policy, slots=4)
    for number in range(3):
        add(engine, f"session {number}", 4)
    for _ in range(20):
        if not engine.has_work:
            break
        go_on(engine, clock, 1)
    assert engine.scheduler.num_waiting_for_streaming_input == 3
    assert views_of(engine) == []
    submit(engine, "other", 30, 5)
    submit(engine, "last", 30, 5)
    assert drive(engine, clock).tokens == {"other": 5, "last": 5}

    clock.now_s += 100.0
    add(engine, "session 1", 6)
    seen = engine.scheduler.view().requests
    assert (seen.request_id.tolist(), seen.arrival_s.tolist()) == (["session 1"], [clock.now_s])
    assert go_on(engine, clock, 8).tokens == {"session 1": 6}


@pytest.mark.parametrize("ended_while", ["idle", "it runs"])
def test_a_session_that_ends_leaves_nothing_behind(ended_while: str) -> None:
    from vllm.v1.request import RequestStatus

    from tests.engine.vllm_driver import left_in

    clock = Clock()
    engine = engine_of(clock, "calm")
    free = engine.free_blocks
    add(engine, "session", 4)
    go_on(engine, clock, 8 if ended_while == "idle" else 2)
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    submit(engine, "other", 30, 5)
    assert drive(engine, clock).tokens == {"other": 5}
    left = left_in(engine.scheduler)
    assert left.pop("kv blocks") == free
    assert not any(left.values()), left


def test_a_session_that_is_paused_while_its_last_token_is_under_way_pauses_no_more() -> None:
    """As asynchronous scheduling has it: the next step is planned before the former one's end."""
    clock = Clock()
    engine = engine_of(clock)
    add(engine, "session", 1)
    submit(engine, "other", 20, 30)
    engine.plan_step()
    engine.scheduler.placement.follow({"other": 0}, {"other"})
    assert engine.scheduler.placement.paused
    engine.finish_step()
    assert not engine.scheduler.placement.paused
    assert views_of(engine) == ["other"]
    add(engine, "session", 5)
    assert drive_until_idle(engine, clock).tokens == {"other": 29, "session": 5}


def drive_until_idle(engine: VirtualEngine, clock: Clock) -> Seen:
    """Until all that are left wait for input."""
    seen = Seen()
    for _ in range(500):
        if not views_of(engine):
            return seen
        seen.step(engine, clock)
    raise AssertionError("still working")


def test_parts_of_sessions_tell_nothing_of_the_length_of_answers() -> None:
    clock = Clock()
    engine = engine_of(clock)
    for number in range(3):
        add(engine, f"session {number}", 1)
    drive_until_idle(engine, clock)
    submit(engine, "answer", 20, 30)
    usual = engine.scheduler.view().requests.default_length
    assert not usual.any()


def test_a_session_that_goes_on_is_read_before_a_prompt_under_way() -> None:
    """vLLM keeps it in a line of its own, as it holds KV cache."""
    clock = Clock()
    engine = engine_of(clock, kv_blocks=400, max_model_tokens=4096)
    script = Ordered(engine)
    add(engine, "session", 4)
    go_on(engine, clock, 8)
    submit(engine, "long", 1920, 3)
    script.run("long")
    go_on(engine, clock, 2)
    add(engine, "session", 4)
    script.run("session", "long")
    assert sorted(read for read, _ in engine.plan_step().prefill_chunks) == [20, 44]
    clock.now_s += STEP_S
    engine.finish_step()
    assert go_on(engine, clock, 4).tokens["session"] == 3


# -- an engine that is being paused --------------------------------------------------------------


def test_who_runs_ends_while_nobody_new_is_let_in() -> None:
    """vLLM's pause that waits: the one paused by a plan must not hold it up for ever."""
    from vllm.v1.core.sched.interface import PauseState

    clock = Clock()
    engine = engine_of(clock, "edf", slots=2, kv_blocks=400, max_model_tokens=4096)
    for name in ("a", "b"):
        submit(engine, name, 20, 60, LATER)
    go_on(engine, clock, 3)
    for name in ("c", "d"):
        submit(engine, name, 20, 60, SOON)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    seen = go_on(engine, clock, 62)
    assert set(seen.ended) == {"a", "b"}
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert set(drive(engine, clock).ended) == {"c", "d"}


def test_a_pause_lets_go_on_whom_a_plan_had_paused() -> None:
    from vllm.v1.core.sched.interface import PauseState

    clock = Clock()
    engine = engine_of(clock, "calm", slots=4)
    dropped = Slo(kind=SloKind.DEADLINE, deadline_s=500.0, on_late=OnLate.CONTINUE)
    submit(engine, "a", 20, 60, dropped)
    go_on(engine, clock, 3)
    engine.scheduler.placement.follow({"a": 0}, frozenset())
    assert engine.scheduler.placement.paused
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    go_on(engine, clock, 1)
    assert not engine.scheduler.placement.paused
    assert set(drive(engine, clock).ended) == {"a"}


# -- what vLLM does beside the plan ---------------------------------------------------------------


def test_a_session_that_goes_on_gets_the_memory_of_who_pauses_for_it() -> None:
    """It holds KV cache while it waits, and vLLM lets nobody in before it has come in."""
    clock = Clock()
    engine = engine_of(clock, slots=4, step_tokens=256, kv_blocks=41, max_model_tokens=640)
    script = Ordered(engine)
    add(engine, "session", 4, prompt_tokens=100)
    script.run("session")
    go_on(engine, clock, 6)
    submit(engine, "holds", 420, 150)
    script.run("holds")
    go_on(engine, clock, 6)
    add(engine, "session", 4, prompt_tokens=200)
    script.run("session")
    assert go_on(engine, clock, 10).tokens["session"] == 4


def test_an_engine_that_computes_nothing_takes_the_places_of_who_pauses(monkeypatch: Any) -> None:
    """Whatever the reason: here a transfer that is not done while somebody else has a place."""
    clock = Clock()
    engine = engine_of(clock, slots=4)
    script = Ordered(engine)
    submit(engine, "pauses", 20, 50)
    script.run("pauses")
    go_on(engine, clock, 5)
    scheduler = engine.scheduler
    monkeypatch.setattr(scheduler, "_ec_transfer_pending", lambda *_: bool(scheduler.running))
    submit(engine, "wants", 20, 50)
    script.run("wants")
    assert go_on(engine, clock, MOST_EMPTY_STEPS).tokens == {}
    assert go_on(engine, clock, 51).tokens["wants"] == 50


@pytest.mark.parametrize("policy", POLICIES)
def test_where_prompts_may_not_be_cut_each_is_read_whole(policy: str, monkeypatch: Any) -> None:
    """A plan's step may have less room than the prompt, which then would never come in."""
    import serving.sim.drive.virtual_engine

    arguments_of = serving.sim.drive.virtual_engine._engine_arguments

    def whole(config: Any) -> Any:
        arguments = arguments_of(config)
        arguments.enable_chunked_prefill = False
        return arguments

    monkeypatch.setattr(serving.sim.drive.virtual_engine, "_engine_arguments", whole)
    clock = Clock()
    engine = engine_of(clock, policy, step_tokens=512, kv_blocks=200)
    stream = Slo(kind=SloKind.LATENCY, ttft_s=5.0, tbt_s=0.05)
    for number in range(2):
        submit(engine, f"stream {number}", 30, 100, stream)
    go_on(engine, clock, 5)
    submit(engine, "long", 400, 5, SOON)
    chunks = [made.prefill_chunks for made, _ in drive(engine, clock).trace]
    assert [each for each in chunks if each] == [((400, 0),)]
