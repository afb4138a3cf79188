"""Placement: which requests hold a slot, KV memory and a step's tokens, in the plan's order.

vLLM serves all running requests before any waiting one and never preempts a running request for a
waiting one. A waiting request that the plan ranks better would get neither a slot, nor memory, nor
tokens until running ones have ended. So running requests are paused, evicted or throttled here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy

from serving.engine.scheduler.plan_queue import PlanQueue
from serving.engine.scheduler.prefill_throttling import NEVER, skipped, throttled
from serving.engine.scheduler.prefix_cache import num_cached_tokens, num_shared_blocks

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

MAX_EMPTY_STEPS = 100
"""Largest number of empty steps in a row before a paused request is evicted; after each further
empty step one more is. No running request would otherwise free what admission is waiting for."""


class Placement:
    """Keeps a plan's order among the running and the waiting requests of vLLM's scheduler.

    Attributes:
        paused: request id -> the step number to restore; a paused request keeps its KV cache and
            its slot and is left out of the steps.
        blocked: requests that wait for something outside any plan, such as a compiled grammar.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._queue = PlanQueue()
        scheduler.waiting = self._queue
        # `running` is kept in plan order, so that under memory pressure vLLM's first-come rule
        # (preempt the last in `running`) evicts what the plan ranks last.
        scheduler.policy = SchedulingPolicy.FCFS
        self.paused: dict[str, int] = {}
        self.blocked: dict[str, Request] = {}
        self._rank: Mapping[str, int] = {}
        self._refused = ""  # still waiting after a step with tokens left; cleared at each end
        self._num_empty_steps = 0  # in a row
        self._num_running_before_step = 0

    def add(self, request: Request) -> None:
        """A new request; it is blocked while its grammar is compiled."""
        if self._scheduler._is_blocked_waiting_status(request.status):
            self.blocked[request.request_id] = request

    def remove(self, request: Request) -> None:
        """A request has ended."""
        self._refused = ""
        self.paused.pop(request.request_id, None)
        self.blocked.pop(request.request_id, None)

    def follow(self, rank: Mapping[str, int], run: Collection[str]) -> None:
        """Follow a new plan: requests outside `run` are paused if running, held if waiting.

        While vLLM admits nothing new, so that running requests can finish, none is paused.
        """
        self._rank = rank
        is_open = self._scheduler.pause_state == PauseState.UNPAUSED
        for request in self._scheduler.running:
            if is_open and request.request_id not in run:
                self._pause(request)
            else:
                self.resume(request)
        self._scheduler.running.sort(key=self._running_key)
        self._queue.follow({request_id: rank[request_id] for request_id in run})

    def resume(self, request: Request) -> None:
        """End a request's pause, if it has one."""
        if request.request_id in self.paused:
            request.next_decode_eligible_step = self.paused.pop(request.request_id)

    def evict(self, request: Request) -> None:
        """Take a running request's slot and KV cache; it waits and recomputes on return."""
        self._scheduler.running.remove(request)
        self._refused = ""
        self._scheduler._preempt_request(
            request, time.monotonic(), drop_stale_output=self._scheduler.requires_kv_delivery
        )

    def update_blocked(self) -> bool:
        """Find requests that became blocked or ready; whether there were any.

        A request is blocked while its grammar is compiled or a connector loads its KV cache. It is
        in no plan, where it would take the place of a request that can be computed meanwhile. vLLM
        itself checks whether it is ready only while a slot is free. This check also makes vLLM end
        requests with faulty grammars.
        """
        scheduler = self._scheduler
        loading = [
            request
            for request in (scheduler._inflight_prefills if scheduler.connector is not None else ())
            if request.request_id not in self.blocked
            and scheduler._is_blocked_waiting_status(request.status)
        ]
        self.blocked |= {request.request_id: request for request in loading}
        ready = [
            request_id
            for request_id, request in self.blocked.items()
            if not scheduler._is_blocked_waiting_status(request.status)
            or scheduler._handle_blocked_waiting_request(request)
        ]
        for request_id in ready:
            del self.blocked[request_id]
        return bool(loading or ready)

    @contextmanager
    def plan_order_in_step(self) -> Iterator[None]:
        """Have vLLM plan one step in which better waiting requests precede worse running ones."""
        scheduler = self._scheduler
        best = self._best_waiting()
        if best is not None and self.paused:
            self._make_room(best)
        if self.paused and self._num_empty_steps > MAX_EMPTY_STEPS:
            self.evict(self._last_paused())
        self._num_running_before_step = len(scheduler.running)
        # A request that vLLM refuses for another reason must not keep steps empty.
        is_admissible = best is not None and best.request_id != self._refused
        worse = self._worse_prefills(best) if best is not None and is_admissible else []
        needs = self._unread_before(worse[0]) if worse else []
        num_others = self._num_running_before_step - len(self.paused) - len(worse)
        tokens_left = scheduler.max_num_scheduled_tokens - num_others * self.min_chunk_tokens
        with (
            skipped(self._beyond_adapters()),
            throttled(
                worse,
                needs,
                tokens_left,
                scheduler.scheduler_config,
                min_chunk_tokens=self.min_chunk_tokens,
            ),
        ):
            yield

    def step_planned(self, output: SchedulerOutput, *, throttle_prefills: bool) -> None:
        """Note the result of a step's planning: admitted and refused requests, and empty steps."""
        scheduler = self._scheduler
        if len(scheduler.running) > self._num_running_before_step:
            scheduler.running.sort(key=self._running_key)
        has_left = output.total_num_scheduled_tokens < scheduler.max_num_scheduled_tokens
        if has_left and not throttle_prefills and (still := self._best_waiting()) is not None:
            self._refused = still.request_id
        is_empty = not output.total_num_scheduled_tokens
        self._num_empty_steps = self._num_empty_steps + 1 if is_empty else 0

    @property
    def min_chunk_tokens(self) -> int:
        """The smallest limit on a chunk that vLLM supports.

        vLLM treats a request with one prompt token left as a decode with drafts, and requires that
        all of them are computed.
        """
        return 1 + int(self._scheduler.num_spec_tokens)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that the prefix cache holds now."""
        return num_cached_tokens(
            request, self._scheduler.kv_cache_manager, self._scheduler.block_size
        )

    def _pause(self, request: Request) -> None:
        if request.request_id not in self.paused:
            self.paused[request.request_id] = request.next_decode_eligible_step
            request.next_decode_eligible_step = NEVER

    def _beyond_adapters(self) -> list[Request]:
        """Running requests beyond the number of LoRA adapters in a step: the worst in the plan.

        vLLM counts only the adapters that a step computes when it admits a new one, and requires
        that no more adapters run than fit. That number is exceeded when paused requests resume.
        """
        config = self._scheduler.lora_config
        if not config:
            return []
        adapters: set[int] = set()
        beyond = []
        for request in self._scheduler.running:
            lora = request.lora_request
            if lora is None or request.request_id in self.paused:
                continue
            if lora.lora_int_id in adapters or len(adapters) < config.max_loras:
                adapters.add(lora.lora_int_id)
            else:
                beyond.append(request)
        return beyond

    def _best_waiting(self) -> Request | None:
        """The best waiting request in the plan that lacks only a slot, memory or tokens.

        A waiting request that holds KV cache, such as a session with new input, comes first: vLLM
        admits no other before it.
        """
        if self._scheduler.pause_state != PauseState.UNPAUSED:
            return None  # vLLM admits nothing
        holders = (each for each in self._scheduler.kv_holding_waiting if self._is_ready(each))
        return next(holders, None) or self._queue.best(self._is_ready)

    def _is_ready(self, request: Request) -> bool:
        return not self._scheduler._is_blocked_waiting_status(request.status)

    def _make_room(self, best: Request) -> None:
        """Evict the last paused request if that may admit this waiting one.

        One at a time: the next step shows whether it was enough.
        """
        missing = self._missing_blocks(best)
        # If vLLM refused it for another reason, such as its adapter, more memory does not help. If
        # layers differ in their blocks, the number of missing blocks is uncertain.
        is_sure = len(self._scheduler.kv_cache_config.kv_cache_groups) == 1
        if self._has_slot() and missing <= 0 and (is_sure or best.request_id != self._refused):
            return
        running = self._scheduler.running
        paused = [request for request in running if request.request_id in self.paused]
        held = sum(self._blocks_of(request) for request in paused)
        # If every running request is paused, none will free blocks by ending, and vLLM then keeps
        # no reserve of blocks.
        may_help = missing <= held or len(paused) == len(running)
        if may_help and self._tokens_left_for(best) > 0:
            self.evict(self._last_paused())

    def _last_paused(self) -> Request:
        running = self._scheduler.running
        paused = (request for request in running if request.request_id in self.paused)
        return max(paused, key=self._running_key)

    def _has_slot(self) -> bool:
        scheduler = self._scheduler
        num_held = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        return bool(num_held < scheduler.max_num_active_reqs)

    def _missing_blocks(self, request: Request) -> int:
        """KV blocks that a waiting request needs beyond the free ones; none if at most 0.

        Cached blocks that no request holds count as free until this request takes them.
        """
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        free: int = manager.block_pool.get_num_free_blocks() - manager.watermark_blocks
        held = self._blocks_of(request)
        needed = -(-(request.num_tokens + scheduler.num_lookahead_tokens) // scheduler.block_size)
        missing: int = needed - held - free
        if missing > 0 and not held:
            missing -= num_shared_blocks(request, manager, scheduler.block_size)
        return missing

    def _blocks_of(self, request: Request) -> int:
        blocks: int = -(-request.num_computed_tokens // self._scheduler.block_size)
        return blocks

    def _tokens_left_for(self, best: Request) -> float:
        """Tokens of the next step that better running requests leave to this waiting one."""
        rank = self._rank_of(best)
        config = self._scheduler.scheduler_config
        chunk_tokens = config.long_prefill_token_threshold or math.inf
        better = [
            request
            for request in self._scheduler.running
            if request.request_id not in self.paused and self._rank_of(request) < rank
        ]
        unread = (max(each.num_tokens_with_spec - each.num_computed_tokens, 1) for each in better)
        left: float = self._scheduler.max_num_scheduled_tokens - sum(
            min(each, chunk_tokens) for each in unread
        )
        return left

    def _worse_prefills(self, best: Request) -> list[Request]:
        """Running prefills that vLLM would serve before this better waiting request; best first.

        Empty if the waiting request lacks a slot or memory anyway.
        """
        rank = self._rank_of(best)
        worse = [
            request
            for request in self._scheduler.running
            if request.is_prefill_chunk
            and request.request_id not in self.paused
            and self._rank_of(request) > rank
        ]
        has_room = worse and self._has_slot() and self._missing_blocks(best) <= 0
        return worse if has_room else []

    def _unread_before(self, prefill: Request) -> list[int]:
        """Uncomputed prompt tokens of each waiting request that precedes this running prefill.

        Waiting requests that hold KV cache always precede it: vLLM admits them first.
        """
        better = self._queue.better_than(self._rank_of(prefill))
        return [
            request.num_tokens - max(request.num_computed_tokens, self.cached_tokens(request))
            for request in (*self._scheduler.kv_holding_waiting, *better)
            if self._is_ready(request)
        ]

    def _rank_of(self, request: Request) -> float:
        return self._rank.get(request.request_id, math.inf)

    def _running_key(self, request: Request) -> tuple[bool, float]:
        return (request.request_id in self.paused, self._rank_of(request))
