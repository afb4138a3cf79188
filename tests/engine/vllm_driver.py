"""vLLM's engine driven by hand: nothing happens in it but what a test does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.policies.table import PolicySpec
from serving.slo import BEST_EFFORT, Slo, to_tags
from serving.view import Plan, StepView, plan_faults

Decide = Callable[[StepView], Plan]


def decide_by(scheduler: Any, decide: Decide | PolicySpec) -> None:
    """Plan by a policy of the table, or by any function, from the next step on."""
    scheduler.planner.use(decide if isinstance(decide, PolicySpec) else PolicySpec("fcfs"))
    if not isinstance(decide, PolicySpec):
        scheduler.planner.policy = decide


@dataclass
class Ended:
    """How a request ended, and at which step of the engine."""

    step: int
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass
class Submitted:
    """A request in the engine under its own id there."""

    engine_id: str
    step: int
    tokens: list[int] = field(default_factory=list)
    ended: Ended | None = None


class Driver:
    """Submits, aborts and steps, on the engine's thread; time is the number of steps.

    Use it within `EmbeddedEngine.call`, whose own loop stands still meanwhile.
    """

    def __init__(self, llm: Any, decide: Decide | PolicySpec) -> None:
        self.llm = llm
        self.scheduler: Any = scheduler_of(llm)
        self.requests: dict[str, Submitted] = {}
        self._names: dict[str, str] = {}
        self.scheduler.lifecycle.ledger.clock = lambda: float(self.scheduler.current_step)
        self.decide_by(decide)

    def decide_by(self, decide: Decide | PolicySpec) -> None:
        """Plan by a policy of the table, or by any function."""
        decide_by(self.scheduler, decide)

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
        """Add a greedy request that generates exactly `max_tokens`, or one of the choices."""
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
        """End a request as its caller would by leaving."""
        self.llm.abort_request([name])
        self.requests[name].ended = Ended(self.scheduler.current_step, "abort", None)

    def step(self) -> list[str]:
        """One step of the engine; the names of those that it ended."""
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
        """So many steps."""
        for _ in range(count):
            self.step()

    def run(self, limit: int = 5000) -> None:
        """Step until all is done; a live-lock fails."""
        for _ in range(limit):
            if not self.llm.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"still working after {limit} steps: {self.unfinished()}")

    def unfinished(self) -> list[str]:
        """Who has not ended."""
        return [name for name, request in self.requests.items() if request.ended is None]

    def steps_taken(self, name: str) -> int:
        """Steps from a request's arrival to its end."""
        request = self.requests[name]
        assert request.ended is not None
        return request.ended.step - request.step

    def request(self, name: str) -> Any:
        """vLLM's own record of a request."""
        return self.scheduler.requests[self.requests[name].engine_id]

    def engine_ids(self, names: Iterable[str]) -> list[str]:
        """The ids by which a view knows these requests."""
        return [self.requests[name].engine_id for name in names]

    def name(self, engine_id: str) -> str:
        """The name under which a view's request was submitted."""
        return self._names[engine_id]

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def running(self) -> list[str]:
        """Who holds a slot, in the engine's order."""
        return [self.name(request.request_id) for request in self.scheduler.running]


class Scripted:
    """A policy that runs whom it is told to, in that order, until it is told otherwise.

    Then come those in `then`, and the others as they arrived. Where nobody named is left, the
    first of the rest runs.
    """

    def __init__(self, driver: Driver, *run: str) -> None:
        self._driver = driver
        self.run(*run)
        driver.decide_by(self)

    def run(self, *names: str, then: Sequence[str] = ()) -> None:
        """From the next step on these run and all others are held or paused."""
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
    """A seeded policy without sense: any order, any holds, pauses, preemptions and budgets.

    With `drop_chance` it also gives requests up. It counts what it did, so that a test can tell
    that there was chaos.
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
        out = [r.request_id for r in view.requests if r.computed_tokens and r.request_id in rest]
        out = [request_id for request_id in out if request_id not in run]
        preempt = {request_id for request_id in out if choose.random() < 0.2}
        self.paused += len(out) - len(preempt)
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
async def at_rest(engine: EmbeddedEngine) -> AsyncIterator[None]:
    """The engine idle, first come first served; whoever leaves something behind in it fails."""
    clock, slots, free_blocks = await engine.call(_settings)
    await engine.call(_rest(clock, slots))
    try:
        yield
    finally:
        left = await engine.call(_left_behind)
        left["kv blocks"] = free_blocks - left["kv blocks"]
        await engine.call(_rest(clock, slots))
    kept = {what: number for what, number in left.items() if number}
    assert not kept, f"left in the engine: {kept}"


def _settings(llm: Any) -> tuple[Any, int, int]:
    scheduler: Any = scheduler_of(llm)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return scheduler.lifecycle.ledger.clock, scheduler.max_num_active_reqs, free_blocks


def left_in(scheduler: Any) -> dict[str, int]:
    """What an idle scheduler still keeps, by what it is; all 0 but the free blocks."""
    ledger = scheduler.lifecycle.ledger
    return {
        "kv blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "requests": len(scheduler.requests),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "paused": len(scheduler.placement.paused),
        "blocked": len(scheduler.placement.blocked),
        "rejected": len(scheduler.lifecycle._rejected),
        "ends not told": len(scheduler._ends_to_report),
        "followed": len(ledger._rows) + len(ledger._place) + len(ledger._stale),
        "promises": sum(isinstance(each, Slo) for each in ledger._columns["slo"]),
        "accounts": len(ledger._programs._open) + len(ledger._users._open),
    }


def _left_behind(llm: Any) -> dict[str, int]:
    callers = llm.output_processor.get_num_unfinished_requests()
    return left_in(scheduler_of(llm)) | {"callers": callers}


def _rest(clock: Any, slots: int) -> Callable[[Any], None]:
    def work(llm: Any) -> None:
        scheduler: Any = scheduler_of(llm)
        llm.abort_request(list(llm.output_processor.request_states), internal=True)
        vars(scheduler.planner).pop("decide", None)
        scheduler.lifecycle.ledger.clock = clock
        scheduler.max_num_active_reqs = slots
        scheduler.planner.use(PolicySpec("fcfs"))
        llm.step()  # the model runner hears who is gone
        assert llm.reset_prefix_cache()

    return work
