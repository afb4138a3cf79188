"""Drives vLLM's engine step by step from a test, and resets it after the test."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.policies.table import PolicySpec
from serving.slo import BEST_EFFORT, Slo, to_tags
from serving.view import Plan, Policy, StepView, plan_faults


def use_policy(scheduler: Any, policy: Policy | PolicySpec) -> None:
    """Use a policy of the table, or any function, from the next step on."""
    scheduler.planner.use(policy if isinstance(policy, PolicySpec) else PolicySpec("fcfs"))
    if not isinstance(policy, PolicySpec):
        scheduler.planner.policy = policy


@dataclass
class Ended:
    """The end of a request, and the engine step in which it ended."""

    step: int
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass
class Submitted:
    """A request, under the id that the engine gave it."""

    engine_id: str
    step: int
    tokens: list[int] = field(default_factory=list)
    ended: Ended | None = None


class Driver:
    """Submits, aborts and steps, on the engine's thread; the clock counts steps.

    Use it within `EmbeddedEngine.call`: the engine's own loop waits meanwhile.
    """

    def __init__(self, llm: Any, policy: Policy | PolicySpec) -> None:
        self.llm = llm
        self.scheduler: Any = scheduler_of(llm)
        self.requests: dict[str, Submitted] = {}
        self._names: dict[str, str] = {}
        self.scheduler.lifecycle.ledger.clock = lambda: float(self.scheduler.current_step)
        self.use_policy(policy)

    def use_policy(self, policy: Policy | PolicySpec) -> None:
        """Use a policy of the table, or any function."""
        use_policy(self.scheduler, policy)

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        slo: Slo = BEST_EFFORT,
        tags: Mapping[str, Any] | None = None,
        choice: Sequence[str] = (),
    ) -> None:
        """Add a greedy request: it generates `max_tokens` tokens, or one of the choices."""
        from vllm.sampling_params import (
            RequestOutputKind,
            SamplingParams,
            StructuredOutputsParams,
        )

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=not choice,
            structured_outputs=StructuredOutputsParams(choice=list(choice)) if choice else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=dict(tags or to_tags(slo)) or None,
        )
        prompt_input = {"prompt_token_ids": list(prompt)}
        engine_id = self.llm.add_request(name, prompt_input, params)
        self.requests[name] = Submitted(engine_id, self.scheduler.current_step)
        self._names[engine_id] = name

    def abort(self, name: str) -> None:
        """Abort a request, as a cancelled caller does."""
        self.llm.abort_request([name])
        self.requests[name].ended = Ended(self.scheduler.current_step, "abort", None)

    def step(self) -> list[str]:
        """Run one step of the engine; returns the names of the requests that it ended."""
        ended = []
        for output in self.llm.step():
            [part] = output.outputs
            request = self.requests[output.request_id]
            request.tokens.extend(part.token_ids)
            if output.finished:
                now = self.scheduler.current_step
                request.ended = Ended(now, part.finish_reason, part.stop_reason)
                ended.append(output.request_id)
        return ended

    def steps(self, count: int) -> None:
        """Run this many steps."""
        for _ in range(count):
            self.step()

    def run(self, limit: int = 5000) -> None:
        """Run steps until all requests have ended; AssertionError after `limit` steps."""
        for _ in range(limit):
            if not self.llm.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"still working after {limit} steps: {self.unfinished()}")

    def unfinished(self) -> list[str]:
        """Names of the requests that have not ended."""
        return [name for name, request in self.requests.items() if request.ended is None]

    def steps_taken(self, name: str) -> int:
        """Number of steps from a request's arrival to its end."""
        request = self.requests[name]
        assert request.ended is not None
        return request.ended.step - request.step

    def request(self, name: str) -> Any:
        """vLLM's Request object."""
        return self.scheduler.requests[self.requests[name].engine_id]

    def engine_ids(self, names: Iterable[str]) -> list[str]:
        """The ids of these requests in views and plans."""
        return [self.requests[name].engine_id for name in names]

    def name(self, engine_id: str) -> str:
        """The name of the request with this id in views and plans."""
        return self._names[engine_id]

    @property
    def free_blocks(self) -> int:
        """Number of free KV blocks."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def running(self) -> list[str]:
        """Names of the requests that hold a slot, in the engine's order."""
        return [self.name(request.request_id) for request in self.scheduler.running]


class Scripted:
    """A policy that runs the requests that the test names, in that order.

    The others are ordered by `then`, and after that by arrival. If no named request is left, the
    first of the others runs.
    """

    def __init__(self, driver: Driver, *run: str) -> None:
        self._driver = driver
        self.run(*run)
        driver.use_policy(self)

    def run(self, *names: str, then: Sequence[str] = ()) -> None:
        """Run these requests from the next step on; all others are held or paused."""
        self._run = frozenset(names)
        self._rank = {name: rank for rank, name in enumerate([*names, *then])}
        self._driver.scheduler.planner.plan_due = True

    def __call__(self, view: StepView) -> Plan:
        last = len(self._rank)
        named = {r.request_id: self._driver.name(r.request_id) for r in view.requests}
        ranked = sorted(
            view.requests,
            key=lambda r: (self._rank.get(named[r.request_id], last), r.arrival_s, r.request_id),
        )
        order = tuple(request.request_id for request in ranked)
        chosen = frozenset(each for each in order if named[each] in self._run)
        return Plan(order=order, run=chosen or frozenset(order[:1]), steps=10**9)


class Chaos:
    """A policy that makes random valid plans: order, holds, pauses, preemptions and budgets.

    It drops each request with probability `drop_chance`. It counts its pauses, preemptions and
    drops, so that a test can check that there were some.
    """

    def __init__(self, seed: int, *, drop_chance: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._drop_chance = drop_chance
        self.paused = self.preempted = self.dropped = 0

    def __call__(self, view: StepView) -> Plan:
        choose = self._random
        order = sorted(request.request_id for request in view.requests)
        choose.shuffle(order)
        drop = [each for each in order if choose.random() < self._drop_chance]
        rest = [each for each in order if each not in drop]
        run = set(choose.sample(rest, choose.randint(1, len(rest)))) if rest else set()
        stop = [r.request_id for r in view.requests if r.computed_tokens and r.request_id in rest]
        stop = [request_id for request_id in stop if request_id not in run]
        preempt = {request_id for request_id in stop if choose.random() < 0.2}
        self.paused += len(stop) - len(preempt)
        self.preempted += len(preempt)
        self.dropped += len(drop)
        plan = Plan(
            order=tuple(order),
            run=frozenset(run),
            preempt=frozenset(preempt),
            drop=tuple((request_id, "by chance") for request_id in drop),
            step_tokens=choose.choice([None, choose.randint(1, view.step_tokens)]),
            chunk_tokens=choose.choice([None, choose.randint(1, view.step_tokens)]),
            steps=choose.randint(1, 4),
        )
        assert plan_faults(view, plan) == []
        return plan


@asynccontextmanager
async def clean_engine(engine: EmbeddedEngine) -> AsyncIterator[None]:
    """Reset the engine before and after the block; AssertionError if the block leaves anything."""
    clock, slots, free_blocks = await engine.call(_settings)
    await engine.call(_reset(clock, slots))
    try:
        yield
    finally:
        counts = await engine.call(_remaining)
        counts["kv blocks"] = free_blocks - counts["kv blocks"]
        await engine.call(_reset(clock, slots))
    left = {name: count for name, count in counts.items() if count}
    assert not left, f"left in the engine: {left}"


def _settings(llm: Any) -> tuple[Any, int, int]:
    scheduler: Any = scheduler_of(llm)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return scheduler.lifecycle.ledger.clock, scheduler.max_num_active_reqs, free_blocks


def remaining_in(scheduler: Any) -> dict[str, int]:
    """Counts of a scheduler's records; in an idle scheduler all are 0, except free KV blocks."""
    ledger = scheduler.lifecycle.ledger
    return {
        "kv blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "requests": len(scheduler.requests),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "paused": len(scheduler.placement.paused),
        "blocked": len(scheduler.placement.blocked),
        "rejected": len(scheduler.lifecycle._rejected),
        "unreported ends": len(scheduler._ends_to_report),
        "ledger rows": len(ledger._requests) + len(ledger._row) + len(ledger._stale),
        "slos": sum(isinstance(each, Slo) for each in ledger._columns["slo"]),
        "open names": len(ledger._programs._num_open) + len(ledger.users.counters._num_open),
    }


def _remaining(llm: Any) -> dict[str, int]:
    calls = llm.output_processor.get_num_unfinished_requests()
    return remaining_in(scheduler_of(llm)) | {"calls": calls}


def _reset(clock: Any, slots: int) -> Callable[[Any], None]:
    def work(llm: Any) -> None:
        scheduler: Any = scheduler_of(llm)
        llm.abort_request(list(llm.output_processor.request_states), internal=True)
        vars(scheduler.planner).pop("decide", None)
        scheduler.lifecycle.ledger.clock = clock
        scheduler.max_num_active_reqs = slots
        scheduler.planner.use(PolicySpec("fcfs"))
        llm.step()  # so that the model runner learns of the aborts
        assert llm.reset_prefix_cache()

    return work
