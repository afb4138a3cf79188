"""Simulator and production make the same plans, step by step, for the same events.

Production is vLLM's engine with the demo model. The simulator is the same scheduler class without a
model. Both have a clock that counts steps, the same slots and memory, and the same arrivals and
aborts. After each step everything that a plan decides is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.request_ledger import RequestLedger
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.table import PolicySpec
from serving.requests import Requests
from serving.slo import FutureWork, OnLate, Slo, SloKind
from serving.step_cost import Composition
from serving.view import Plan, Policy, StepView
from tests.conftest import DEMO_CONFIG
from tests.engine.vllm_driver import Chaos, Driver, use_policy
from tests.strategies import PLAN_KINDS

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

NUM_REQUESTS = 40
SLOTS = 6  # fewer than arrive, so that many wait
MAX_STEPS = 3000


class Arrival(NamedTuple):
    """A request; times in steps."""

    name: str
    at: int
    prompt: list[int]
    output_tokens: int
    slo: Slo
    aborted_at: int | None


class Step(NamedTuple):
    """The result of one step of either engine."""

    plan: Plan | None  # made before this step, with the names of requests; None: no new plan
    view: tuple[object, ...]  # the policy's input for this plan
    composition: Composition
    running: tuple[str, ...]  # in the engine's order
    paused: frozenset[str]
    progress: dict[str, tuple[int, int, int]]  # computed tokens, output tokens, preemptions
    free_blocks: int


def workload(seed: int) -> list[Arrival]:
    """More requests than slots and memory hold: some meet their SLO, others miss it."""
    choose = random.Random(seed)
    arrivals, at = [], 0
    for number in range(NUM_REQUESTS):
        at += choose.choice([0, 0, 1, 3])
        output_tokens = choose.randint(1, 40)
        prompt = [choose.randint(2, 4000) for _ in range(choose.choice([5, 60, 400, 1500]))]
        if choose.random() < 0.3:
            prompt = [9] * 256 + prompt  # a common prefix
        aborted_at = at + choose.randint(1, 60) if choose.random() < 0.15 else None
        slo = random_slo(choose, number, output_tokens)
        arrivals.append(Arrival(f"{number:03}", at, prompt, output_tokens, slo, aborted_at))
    return arrivals


def random_slo(choose: random.Random, number: int, output_tokens: int) -> Slo:
    predicted = sorted(output_tokens * choose.lognormvariate(0.2, 0.4) for _ in LENGTH_LEVELS)
    more: dict[str, Any] = {
        "length": choose.choice([None, LengthSketch(tuple(predicted))]),
        "on_late": choose.choice(list(OnLate)),
        "user": choose.choice("xyz"),
        "weight": choose.choice([0.5, 1.0, 1.0, 4.0]),
    }
    deadline_s = float(choose.randint(10, 250))
    kind = choose.choice(list(SloKind))
    if kind is SloKind.LATENCY:
        more |= {"ttft_s": choose.uniform(2, 40), "tbt_s": choose.uniform(0.5, 4), "waiting_s": 60}
    elif kind is SloKind.DEADLINE:
        more |= {"deadline_s": deadline_s}
    elif kind is SloKind.COMPOUND:
        more |= {"deadline_s": deadline_s / 2, "final_s": deadline_s, "stage": number % 2}
        more |= {"program": f"run {number % 5}", "stage_calls": 3}
        more |= {"future": FutureWork(2.0, 300.0, 60.0, 30.0, 5.0, 40.0)}
    return Slo(kind=kind, **more)


class Recorder:
    """Replaces a planner's `decide`, and records the plan and the result of each step."""

    def __init__(self, scheduler: Any, policy: Policy | PolicySpec, name: Callable[[str], str]):
        use_policy(scheduler, policy)
        self._decide = scheduler.planner.decide
        self._scheduler = scheduler
        self._name = name
        self._planned: tuple[Plan | None, tuple[object, ...]] = (None, ())
        self.steps: list[Step] = []
        began = scheduler.current_step
        scheduler.planner.decide = self
        scheduler.max_num_active_reqs = SLOTS
        scheduler.lifecycle.ledger = RequestLedger(lambda: float(scheduler.current_step - began))
        scheduler.lifecycle.tracker = StepTracker()

    def __call__(self, view: StepView) -> Plan:
        plan: Plan = self._decide(view)
        named = plan._replace(
            order=tuple(map(self._name, plan.order)),
            run=frozenset(map(self._name, plan.run)),
            preempt=frozenset(map(self._name, plan.preempt)),
            drop=tuple((self._name(request_id), reason) for request_id, reason in plan.drop),
        )
        self._planned = (named, tuple(self._rows(part) for part in view))
        return plan

    def _rows(self, part: object) -> object:
        """A field of a view, comparable: requests are sorted by name, as they have no order."""
        if isinstance(part, np.ndarray):
            return part.tolist()
        if not isinstance(part, Requests):
            return part
        named = [each._replace(request_id=self._name(each.request_id)) for each in part]
        return sorted(named, key=lambda each: each.request_id)

    def record_step(self) -> None:
        """Record the step that has just ended."""
        scheduler = self._scheduler
        plan, view = self._planned
        self._planned = (None, ())
        progress = {
            self._name(each.request_id): (
                each.num_computed_tokens,
                each.num_output_tokens,
                each.num_preemptions,
            )
            for each in scheduler.requests.values()
        }
        self.steps.append(
            Step(
                plan=plan,
                view=view,
                composition=scheduler.composition,
                running=tuple(self._name(each.request_id) for each in scheduler.running),
                paused=frozenset(map(self._name, scheduler.placement.paused)),
                progress=progress,
                free_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            )
        )


class Production:
    """vLLM's engine, on its own thread."""

    def __init__(self, llm: Any) -> None:
        self.scheduler: Any = scheduler_of(llm)
        self._driver = Driver(llm, PolicySpec("fcfs"))
        self.name = self._driver.name

    def submit(self, each: Arrival) -> None:
        self._driver.submit(each.name, each.prompt, max_tokens=each.output_tokens, slo=each.slo)

    def abort(self, name: str) -> None:
        self._driver.abort(name)

    def step(self) -> None:
        self._driver.step()


class Simulated:
    """The scheduler class without a model."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.scheduler = engine.scheduler
        self._engine = engine

    def name(self, request_id: str) -> str:
        return request_id

    def submit(self, each: Arrival) -> None:
        limit = each.output_tokens
        self._engine.submit(
            each.name, prompt=each.prompt, output_tokens=limit, slo=each.slo, max_tokens=limit
        )

    def abort(self, name: str) -> None:
        self._engine.abort(name)

    def step(self) -> None:
        self._engine.plan_step()
        self._engine.finish_step()


def play(
    player: Production | Simulated, policy: Policy | PolicySpec, arrivals: list[Arrival]
) -> list[Step]:
    """Play all arrivals and aborts; an idle engine skips to the next arrival."""
    scheduler = player.scheduler
    recorder = Recorder(scheduler, policy, player.name)
    to_arrive, to_abort = list(arrivals), [each for each in arrivals if each.aborted_at is not None]
    while to_arrive or scheduler.has_requests():
        now = scheduler.lifecycle.ledger.clock()
        if to_arrive and not scheduler.has_requests():
            now = max(now, to_arrive[0].at)
        while to_arrive and to_arrive[0].at <= now:
            player.submit(to_arrive.pop(0))
        present = {player.name(request_id) for request_id in scheduler.requests}
        for each in [each for each in to_abort if (each.aborted_at or 0) <= now]:
            to_abort.remove(each)
            if each.name in present:
                player.abort(each.name)
        player.step()
        recorder.record_step()
        assert len(recorder.steps) < MAX_STEPS, "a live-lock"
    return recorder.steps


def simulator(scheduler: Any) -> Simulated:
    """A simulator with the slots and memory of production's engine."""
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    engine = VirtualEngine(
        VirtualConfig(
            policy=PolicySpec("fcfs"),
            slots=DEMO_CONFIG.slots,
            step_tokens=DEMO_CONFIG.step_tokens,
            kv_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            block_tokens=scheduler.block_size,
            max_model_tokens=DEMO_CONFIG.max_model_tokens or 0,
            prefix_caching=True,
        ),
        lambda: 0.0,
    )
    return Simulated(engine)


async def both(
    engine: EmbeddedEngine, policies: tuple[Policy | PolicySpec, Policy | PolicySpec], seed: int
) -> tuple[list[Step], list[Step]]:
    """The steps of production and of the simulator with the same workload."""
    arrivals = workload(seed)

    def work(llm: Any) -> list[Step]:
        player = Production(llm)
        scheduler = player.scheduler
        lifecycle = scheduler.lifecycle
        own = {name: getattr(lifecycle, name) for name in ("ledger", "tracker")}
        try:
            return play(player, policies[0], arrivals)
        finally:
            llm.abort_request(list(llm.output_processor.request_states), internal=True)
            vars(lifecycle).update(own)
            del scheduler.planner.decide

    real = await engine.call(work)
    simulated = simulator(await engine.call(scheduler_of))
    return real, play(simulated, policies[1], arrivals)


def assert_same(real: list[Step], simulated: list[Step]) -> None:
    for number, (left, right) in enumerate(zip(real, simulated, strict=False)):
        for name in Step._fields:
            assert getattr(left, name) == getattr(right, name), f"step {number}, {name}"
    assert len(real) == len(simulated)


@pytest.mark.parametrize("policy", PLAN_KINDS)
async def test_production_and_simulator_make_the_same_plans(
    engine: EmbeddedEngine, policy: str
) -> None:
    spec = PolicySpec(policy)
    real, simulated = await both(engine, (spec, spec), seed=3)
    assert_same(real, simulated)
    assert sum(step.plan is not None for step in real) > NUM_REQUESTS / 2
    assert min(step.free_blocks for step in real) <= 8, "memory was short"


@pytest.mark.parametrize("seed", [0, 1])
async def test_production_and_simulator_carry_out_random_plans_alike(
    engine: EmbeddedEngine, seed: int
) -> None:
    """The plans have random pauses, preemptions, drops and budgets."""
    chaos = Chaos(seed, drop_chance=0.005), Chaos(seed, drop_chance=0.005)
    real, simulated = await both(engine, chaos, seed)
    assert_same(real, simulated)
    assert any(step.paused for step in real)
    assert sum(len(step.plan.preempt) for step in real if step.plan) > 5


async def test_the_comparison_detects_different_plans(engine: EmbeddedEngine) -> None:
    """It fails for two different policies."""
    real, simulated = await both(engine, (PolicySpec("edf"), PolicySpec("fcfs")), seed=3)
    with pytest.raises(AssertionError, match="step "):
        assert_same(real, simulated)
