"""Ten thousand events in any order, without a model: every KV block and every record comes back."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from serving.policies.table import POLICIES, PolicySpec
from serving.slo import OnLate, Slo, SloKind
from tests.engine.vllm_driver import Chaos, Decide, decide_by, left_in

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")

STEP_S = 0.02
MOST_WAITING = 20


def engine_of(prefix_caching: bool, clock: Any) -> VirtualEngine:
    """Slots and memory for far fewer than arrive: two long requests fill all blocks."""
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    config = VirtualConfig(
        policy=PolicySpec("fcfs"),
        slots=6,
        step_tokens=64,
        kv_blocks=40,
        max_model_tokens=512,
        prefix_caching=prefix_caching,
    )
    return VirtualEngine(config, clock)


class Storm:
    """Requests arrive, leave, run late and end, at random; counts what happened to them."""

    def __init__(self, decide: Decide | PolicySpec, *, seed: int, prefix_caching: bool) -> None:
        self.now_s = 0.0
        self.engine = engine_of(prefix_caching, lambda: self.now_s)
        self.events: Counter[str] = Counter()
        self._choose = random.Random(seed)
        self._alive: list[str] = []
        self._held: set[str] = set()
        decide_by(self.engine.scheduler, decide)

    def run(self, num_events: int) -> None:
        """So many events, and then until all have ended."""
        while self.events.total() < num_events:
            if self._choose.random() < 0.6 and len(self._alive) < MOST_WAITING:
                self._arrive()
            elif self._alive and self._choose.random() < 0.4:
                self._leave()
            for _ in range(self._choose.randint(0, 3)):
                self._step()
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self._step()
        raise AssertionError(f"still working: {self._alive}")

    def _arrive(self) -> None:
        choose = self._choose
        name = f"{self.events['arrive']:05}"
        prompt = [choose.randint(1000, 1003)] * choose.choice([3, 40, 130, 300])
        slo = Slo(kind=SloKind.LATENCY, ttft_s=0.5, tbt_s=0.05, waiting_s=2.0)
        if choose.random() < 0.5:
            deadline_s = choose.choice([0.2, 5.0])
            on_late = choose.choice(list(OnLate))
            slo = Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s, on_late=on_late)
        self.engine.submit(
            name, prompt=prompt, output_tokens=choose.randint(1, 40), slo=slo, max_tokens=60
        )
        self._alive.append(name)
        self.events["arrive"] += 1

    def _leave(self) -> None:
        name = self._choose.choice(self._alive)
        self._alive.remove(name)
        self.engine.abort(name)
        self.events["abort"] += 1

    def _step(self) -> None:
        if not self.engine.has_work:
            return
        before = self.engine.preemptions
        self.engine.plan_step()
        self.now_s += STEP_S
        for ended in self.engine.finish_step().ended:
            if ended.request_id in self._alive:
                self._alive.remove(ended.request_id)
                self.events["drop" if ended.finish_reason == "abort" else "finish"] += 1
        paused = set(self.engine.scheduler.placement.paused)
        self.events["pause"] += len(paused - self._held)
        self._held = paused
        self.events["preempt"] += self.engine.preemptions - before


def weather(decide: Decide | PolicySpec, num_events: int, *, prefix_caching: bool) -> Counter[str]:
    """What happened in a storm that left nothing behind."""
    storm = Storm(decide, seed=5, prefix_caching=prefix_caching)
    free_blocks = storm.engine.free_blocks
    storm.run(num_events)
    left = left_in(storm.engine.scheduler)
    assert left.pop("kv blocks") == free_blocks
    assert not any(left.values()), left
    assert not storm.engine._output_tokens
    assert not storm.engine._computed
    return storm.events


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_chaos_leaks_nothing(prefix_caching: bool) -> None:
    chaos = Chaos(0, drop_chance=0.003)
    events = weather(chaos, 10_000, prefix_caching=prefix_caching)
    kinds = ("arrive", "abort", "finish", "preempt", "pause", "drop")
    assert min(events[kind] for kind in kinds) > 100, events


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_leaks(policy: str) -> None:
    events = weather(PolicySpec(policy), 2500, prefix_caching=True)
    assert min(events[kind] for kind in ("arrive", "abort", "finish", "drop")) > 20, events
