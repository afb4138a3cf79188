"""One engine of a fleet: its own clock, what waits for the end of its step, and its books."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
"""How old a replica's report may be before a router asks for a new one."""

FULL_BATCH = 96
TYPICAL_CONTEXT_TOKENS = 1500
FULL_STEP_TOKENS = 2048
"""The batch and the step of prompts at which a token's cost is told to routers."""


class ReplicaEngine(SteppedEngine, Protocol):
    """A stepped engine that tells what a router must know of it."""

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
        """Those that nobody holds."""
        ...

    @property
    def caches_prefixes(self) -> bool:
        """Whether what it has read of a prompt may serve another one."""
        ...

    def has_begun(self, request_id: str) -> bool:
        """Whether a request that has not ended is part of a planned step, or of one before it."""
        ...


@dataclass(slots=True)
class _Open:
    request: RoutedRequest
    arrival_s: float
    generated_tokens: int = 0
    running: bool = False


class Replica:
    """An engine that is stepped on its own clock, beside others.

    What reaches it during a step waits until the step's end, as at a real engine's input queue.

    Args:
        clock: its own, which the engine reads.
    """

    block_tokens = 16

    def __init__(
        self, name: str, engine: ReplicaEngine, clock: VirtualTime, cost: StepCost
    ) -> None:
        self.name = name
        self.engine = engine
        self.stepper = Stepper(engine, clock, cost)
        self.ends_s = math.inf  # of the step under way
        self.undecided: set[str] = set()  # copies that other replicas have as well
        self._clock = clock
        self._cost = cost
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
            submit: hands it to the engine, at the given moment on the engine's clock.
            only: no other replica has a copy.
        """
        self._open[request.request_id] = _Open(request, now_s)
        if not only:
            self.undecided.add(request.request_id)
        if self._snapshot is not None:
            self._snapshot = with_request(self._snapshot, request)
        if self.in_step:
            self._inbox[request.request_id] = lambda: submit(self._clock.now_s)
        else:
            self._clock.now_s = now_s
            submit(now_s)

    def withdraw(self, request_id: str, now_s: float) -> None:
        """End a request, or a copy of it, as its caller would by leaving."""
        self._forget(request_id)
        if self._inbox.pop(request_id, None) is not None:
            return  # the engine never saw it
        if self.in_step:
            self._inbox[request_id] = lambda: self.engine.abort(request_id)
        else:
            self._clock.now_s = now_s
            self.engine.abort(request_id)

    def plan(self, now_s: float, next_event_s: float) -> list[str]:
        """Begin a step; the copies that it is the first to run."""
        self._clock.now_s = now_s
        self.ends_s = self.stepper.plan(next_event_s)
        return [each for each in sorted(self.undecided) if self.engine.has_begun(each)]

    def finish(self) -> Progress:
        """End the step; the clock stands at its end."""
        self._clock.now_s = self.ends_s
        self.ends_s = math.inf
        progress = self.engine.finish_step()
        for request_id in progress.tokens:
            if request_id in self._open:
                self._count_token(self._open[request_id])
        for ended in progress.ended:
            self._forget(ended.request_id)
        return progress

    def open_inbox(self) -> None:
        """Between two steps: what came during the last one reaches the engine."""
        waiting, self._inbox = self._inbox, {}
        for deliver in waiting.values():
            deliver()

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """What a router knows of it: its last report, and what was sent there since."""
        if self._snapshot is None or now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._snapshot = snapshot_of(
                self.name, self, self._requests(now_s), prefix_tokens=dict(self._prefixes)
            )
        return self._snapshot

    @property
    def speed(self) -> Speed:
        """By its step cost; its pace is that of a decode step of those that run now."""
        running = [each for each in self._open.values() if each.running]
        contexts = sum(each.request.prompt_tokens + each.generated_tokens for each in running)
        return Speed(
            prefill_token_s=self._prefill_step_s() / FULL_STEP_TOKENS,
            decode_token_s=self._decode_step_s(FULL_BATCH, FULL_BATCH * TYPICAL_CONTEXT_TOKENS)
            / FULL_BATCH,
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
        """Those that nobody holds."""
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
            self._believe_cached(each.request)

    def _believe_cached(self, request: RoutedRequest) -> None:
        """What was read last stays cached, as much of it as the KV cache holds."""
        known = self._prefixes.pop(request.prefix, 0)
        self._prefixes[request.prefix] = max(known, request.prefix_tokens)
        room = self.kv_blocks * self.block_tokens - sum(self._prefixes.values())
        for prefix in list(self._prefixes)[:-1]:
            if room >= 0:
                return
            room += self._prefixes.pop(prefix)

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self.undecided.discard(request_id)

    def _prefill_step_s(self) -> float:
        return self._cost.seconds(Composition.of_prompt(FULL_STEP_TOKENS))

    def _decode_step_s(self, num_decodes: int, context_tokens: int) -> float:
        return self._cost.seconds(Composition(num_decodes, num_decodes, context_tokens, ()))
