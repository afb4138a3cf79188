"""Ten thousand random events without a model: no KV block and no record is leaked."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from serving.policies.table import POLICIES, PolicySpec
from serving.slo import OnLate, Slo, SloKind
from serving.view import Policy
from tests.engine.vllm_driver import Chaos, remaining_in, use_policy

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")

STEP_S = 0.02
MAX_REQUESTS = 20


def engine_of(prefix_caching: bool, clock: Any) -> VirtualEngine:
    """An engine under pressure: two long requests fill its KV cache."""
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


class RandomEvents:
    """Requests arrive, are aborted, are late and end, at random; counts these events."""

    def __init__(self, policy: Policy | PolicySpec, *, seed: int, prefix_caching: bool) -> None:
        self.now_s = 0.0
        self.engine = engine_of(prefix_caching, lambda: self.now_s)
        self.events: Counter[str] = Counter()
        self._choose = random.Random(seed)
        self._unfinished: list[str] = []
        self._paused: set[str] = set()
        use_policy(self.engine.scheduler, policy)

    def run(self, num_events: int) -> None:
        """Cause at least this many events, then run until all requests have ended."""
        while self.events.total() < num_events:
            if self._choose.random() < 0.6 and len(self._unfinished) < MAX_REQUESTS:
                self._arrive()
            elif self._unfinished and self._choose.random() < 0.4:
                self._abort()
            for _ in range(self._choose.randint(0, 3)):
                self._step()
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self._step()
        raise AssertionError(f"still working: {self._unfinished}")

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
        self._unfinished.append(name)
        self.events["arrive"] += 1

    def _abort(self) -> None:
        name = self._choose.choice(self._unfinished)
        self._unfinished.remove(name)
        self.engine.abort(name)
        self.events["abort"] += 1

    def _step(self) -> None:
        if not self.engine.has_work:
            return
        before = self.engine.preemptions
        self.engine.plan_step()
        self.now_s += STEP_S
        for ended in self.engine.finish_step().ended:
            if ended.request_id in self._unfinished:
                self._unfinished.remove(ended.request_id)
                self.events["drop" if ended.finish_reason == "abort" else "finish"] += 1
        paused = set(self.engine.scheduler.placement.paused)
        self.events["pause"] += len(paused - self._paused)
        self._paused = paused
        self.events["preempt"] += self.engine.preemptions - before


def events_without_leak(
    policy: Policy | PolicySpec, num_events: int, *, prefix_caching: bool
) -> Counter[str]:
    """Run random events and check that nothing is left; returns their counts."""
    load = RandomEvents(policy, seed=5, prefix_caching=prefix_caching)
    free_blocks = load.engine.free_blocks
    load.run(num_events)
    left = remaining_in(load.engine.scheduler)
    assert left.pop("kv blocks") == free_blocks
    assert not any(left.values()), left
    assert not load.engine._output_tokens
    assert not load.engine._computed
    return load.events


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_random_plans_leak_nothing(prefix_caching: bool) -> None:
    chaos = Chaos(0, drop_chance=0.003)
    events = events_without_leak(chaos, 10_000, prefix_caching=prefix_caching)
    kinds = ("arrive", "abort", "finish", "preempt", "pause", "drop")
    assert min(events[kind] for kind in kinds) > 100, events


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_leaks(policy: str) -> None:
    events = events_without_leak(PolicySpec(policy), 1000, prefix_caching=True)
    assert min(events[kind] for kind in ("arrive", "abort", "finish", "drop")) > 5, events
