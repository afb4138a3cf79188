"""One engine of a fleet: its clock, its inbox during a step, and its record of open requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serving.router.snapshot import (
    OpenRequest,
    ReplicaSnapshot,
    RoutedRequest,
    Speed,
    snapshot_of,
    with_request,
)
from serving.sim.drive.driver import Stepper, VirtualTime
from serving.sim.drive.stepped import Progress, SteppedEngine
from serving.step_cost import Composition, StepCost

REPORT_S = 0.1
"""Age at which a replica's report is replaced by a new one."""


class TypicalStep(NamedTuple):
    """The decode batch and the prefill step at which the cost of a token is reported to routers.

    Attributes:
        num_decodes, context_tokens: of a decode step; the context is that of each decode.
        prompt_tokens: of a prefill step.
    """

    num_decodes: int = 96
    context_tokens: int = 1500
    prompt_tokens: int = 2048


TYPICAL_STEP = TypicalStep()


class ReplicaEngine(SteppedEngine, Protocol):
    """A stepped engine with the properties that a router needs."""

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        ...

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def free_blocks(self) -> int:
        """Free blocks of the KV cache."""
        ...

    @property
    def caches_prefixes(self) -> bool:
        """Whether prefix caching is on."""
        ...

    def has_begun(self, request_id: str) -> bool:
        """Whether a request that has not ended has been part of a planned step."""
        ...


@dataclass(slots=True)
class _Open:
    request: RoutedRequest
    arrival_s: float
    generated_tokens: int = 0
    running: bool = False


class Replica:
    """An engine that is stepped on its own clock, beside others.

    Requests that arrive during a step wait for its end, as in a real engine's input queue.

    Args:
        clock: the clock that the engine reads.
    Attributes:
        ends_s: end of the running step; infinity between steps.
        unbound_copies: ids of requests of which other replicas have copies as well.
    """

    block_tokens = 16

    def __init__(
        self,
        name: str,
        engine: ReplicaEngine,
        clock: VirtualTime,
        cost: StepCost,
        *,
        typical: TypicalStep = TYPICAL_STEP,
    ) -> None:
        self.name = name
        self.engine = engine
        self.stepper = Stepper(engine, clock, cost)
        self.ends_s = math.inf
        self.unbound_copies: set[str] = set()
        self._clock = clock
        self._cost = cost
        self._typical = typical
        self._inbox: dict[str, Callable[[], None]] = {}
        self._open: dict[str, _Open] = {}
        self._prefixes: dict[str, int] = {}
        self._snapshot: ReplicaSnapshot | None = None
        self._reported_s = -math.inf

    @property
    def in_step(self) -> bool:
        """Whether a step is planned and not finished."""
        return self.ends_s < math.inf

    def submit(
        self, request: RoutedRequest, now_s: float, submit: Callable[[float], None], *, only: bool
    ) -> None:
        """Take a request, or a copy of it.

        Args:
            submit: submits it to the engine, at the given time on the engine's clock.
            only: whether no other replica has a copy.
        """
        self._open[request.request_id] = _Open(request, now_s)
        if not only:
            self.unbound_copies.add(request.request_id)
        if self._snapshot is not None:
            self._snapshot = with_request(self._snapshot, request)
        if self.in_step:
            self._inbox[request.request_id] = lambda: submit(self._clock.now_s)
        else:
            self._clock.now_s = now_s
            submit(now_s)

    def withdraw(self, request_id: str, now_s: float) -> None:
        """Abort a request, or a copy of it, as if its caller had disconnected."""
        self._forget(request_id)
        if self._inbox.pop(request_id, None) is not None:
            return  # the engine has not received it
        if self.in_step:
            self._inbox[request_id] = lambda: self.engine.abort(request_id)
        else:
            self._clock.now_s = now_s
            self.engine.abort(request_id)

    def plan(self, now_s: float, next_event_s: float) -> list[str]:
        """Begin a step; returns the unbound copies that it runs."""
        self._clock.now_s = now_s
        self.ends_s = self.stepper.plan(next_event_s)
        return [each for each in sorted(self.unbound_copies) if self.engine.has_begun(each)]

    def finish(self) -> Progress:
        """End the step; the clock is set to its end."""
        self._clock.now_s = self.ends_s
        self.ends_s = math.inf
        progress = self.engine.finish_step()
        for request_id in progress.tokens:
            if request_id in self._open:
                self._count_token(self._open[request_id])
        for ended in progress.ended:
            self._forget(ended.request_id)
        return progress

    def deliver_inbox(self) -> None:
        """Between two steps: deliver to the engine what arrived during the last one."""
        inbox, self._inbox = self._inbox, {}
        for deliver in inbox.values():
            deliver()

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """The router's view of it: its last report, and the requests sent to it since."""
        if self._snapshot is None or now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._snapshot = snapshot_of(
                self.name, self, self._requests(now_s), prefix_tokens=dict(self._prefixes)
            )
        return self._snapshot

    @property
    def speed(self) -> Speed:
        """Seconds per token by its step cost; `token_s` is a decode step of the running ones."""
        running = [each for each in self._open.values() if each.running]
        contexts = sum(each.request.prompt_tokens + each.generated_tokens for each in running)
        num_decodes, context_tokens, prompt_tokens = self._typical
        full_s = self._decode_step_s(num_decodes, num_decodes * context_tokens)
        return Speed(
            prefill_token_s=self._prefill_step_s(prompt_tokens) / prompt_tokens,
            decode_token_s=full_s / num_decodes,
            token_s=self._decode_step_s(max(len(running), 1), contexts),
        )

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        return self.engine.slots

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.engine.kv_blocks

    @property
    def free_kv_blocks(self) -> int:
        """Free blocks of the KV cache."""
        return self.engine.free_blocks

    def _requests(self, now_s: float) -> list[OpenRequest]:
        for request_id, each in self._open.items():
            each.running = each.running or self.engine.has_begun(request_id)
        return [
            OpenRequest(
                each.request, now_s - each.arrival_s, each.generated_tokens, running=each.running
            )
            for each in self._open.values()
        ]

    def _count_token(self, each: _Open) -> None:
        each.generated_tokens += 1
        if self.engine.caches_prefixes and each.generated_tokens == 1 and each.request.prefix:
            self._assume_cached(each.request)

    def _assume_cached(self, request: RoutedRequest) -> None:
        """Assume that the latest prefixes stay cached, as many as the KV cache holds (LRU)."""
        known = self._prefixes.pop(request.prefix, 0)
        self._prefixes[request.prefix] = max(known, request.prefix_tokens)
        free_tokens = self.kv_blocks * self.block_tokens - sum(self._prefixes.values())
        for prefix in list(self._prefixes)[:-1]:
            if free_tokens >= 0:
                return
            free_tokens += self._prefixes.pop(prefix)

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self.unbound_copies.discard(request_id)

    def _prefill_step_s(self, prompt_tokens: int) -> float:
        return self._cost.seconds(Composition.of_prompt(prompt_tokens))

    def _decode_step_s(self, num_decodes: int, context_tokens: int) -> float:
        return self._cost.seconds(Composition(num_decodes, num_decodes, context_tokens, ()))
