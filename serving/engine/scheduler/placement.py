"""Places in the engine, as the plan gives them: who is paused, and who gives way to whom.

vLLM serves all who run before anybody who waits, and takes nothing from the one for the other. So
who is better in the plan and waits would get neither a slot nor memory nor a step's tokens before
those who run have ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy

from serving.engine.scheduler.plan_queue import PlanQueue
from serving.engine.scheduler.prefill_throttling import NEVER, held_back, left_out
from serving.engine.scheduler.prefix_cache import cached_tokens, shared_blocks

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as _VllmScheduler
    from vllm.v1.request import Request
else:
    _VllmScheduler = object  # the mixin stands before the vLLM class

MOST_EMPTY_STEPS = 100
"""After so many steps in a row that compute nothing, one of the paused gives up its place, and one
more after each further step: whatever keeps out those who are to run, nobody else ends."""


class RoomMixin(_VllmScheduler):
    """A vLLM scheduler in which a plan's order holds between those who run and those who wait."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = PlanQueue()
        # `running` is kept in plan order, so that under memory pressure vLLM's first-come rule
        # (the last in `running` gives way) evicts what the plan ranks last.
        self.policy = SchedulingPolicy.FCFS
        self._rank: Mapping[str, int] = {}
        self._paused: dict[str, int] = {}  # request id -> the step number to restore
        self._blocked: dict[str, Request] = {}  # wait for what no plan can give them
        self._refused = ""  # who waited although a step had tokens left, and nobody left since
        self._empty_steps = 0  # in a row

    def add_request(self, request: Request) -> None:
        """Take a request; one whose grammar is still compiled is blocked until then."""
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if is_new and self._is_blocked_waiting_status(request.status):
            self._blocked[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of vLLM's own, in which the best who waits comes before worse who run."""
        best = self._best_waiting()
        if best is not None and self._paused:
            self._make_room(best)
        if self._paused and self._empty_steps > MOST_EMPTY_STEPS:
            self._evict(self._last_paused())
        num_running = len(self.running)
        # For one whom vLLM refuses, for whatever reason, no step is to be empty again.
        gives_way = best is not None and best.request_id != self._refused
        readers = self._readers_behind(best) if best is not None and gives_way else []
        needs = self._prompts_before(readers[0]) if readers else []
        num_others = num_running - len(self._paused) - len(readers)
        left = self.max_num_scheduled_tokens - num_others * (1 + self.num_spec_tokens)
        with (
            left_out(self._beyond_adapters()),
            held_back(
                readers,
                needs,
                left,
                self.scheduler_config,
                least_chunk_tokens=self._least_chunk_tokens,
            ),
        ):
            output = super().schedule(throttle_prefills)
        if len(self.running) > num_running:
            self.running.sort(key=self._running_key)
        has_left = output.total_num_scheduled_tokens < self.max_num_scheduled_tokens
        if has_left and not throttle_prefills and (waits := self._best_waiting()) is not None:
            self._refused = waits.request_id
        self._empty_steps = 0 if output.total_num_scheduled_tokens else self._empty_steps + 1
        return output

    def _take_places(self, rank: Mapping[str, int], run: Collection[str]) -> None:
        """Follow a new plan: these ranks, and who may run; the others are paused or held.

        While vLLM lets nobody new in, so that those under way can end, nobody is paused.
        """
        self._rank = rank
        is_open = self.pause_state == PauseState.UNPAUSED
        for request in self.running:
            self._set_paused(request, is_open and request.request_id not in run)
        self.running.sort(key=self._running_key)
        self.waiting.follow({request_id: rank[request_id] for request_id in run})

    @property
    def _least_chunk_tokens(self) -> int:
        """No chunk's limit may be lower: vLLM takes a request with one token left to read for a
        decode with its drafts, and relies on computing them all."""
        return 1 + int(self.num_spec_tokens)

    def _block_or_promote(self) -> bool:
        """Whether somebody was blocked, or no longer is; vLLM is told of faulty grammars.

        Blocked are those whose grammar is compiled, and those whose KV cache is loaded from afar.
        They are in no plan, or they would have the places of those who can be computed meanwhile.
        vLLM itself asks whether they are ready only while it has a slot to give.
        """
        loading = [
            request
            for request in (self._inflight_prefills if self.connector is not None else ())
            if request.request_id not in self._blocked
            and self._is_blocked_waiting_status(request.status)
        ]
        self._blocked |= {request.request_id: request for request in loading}
        ready = [
            request_id
            for request_id, request in self._blocked.items()
            if not self._is_blocked_waiting_status(request.status)
            or self._handle_blocked_waiting_request(request)
        ]
        for request_id in ready:
            del self._blocked[request_id]
        return bool(loading or ready)

    def _beyond_adapters(self) -> list[Request]:
        """Who runs and has no place among the adapters of a step: the worst in the plan.

        vLLM lets a new adapter in beside those that are computed, whoever is paused or left out of
        that step, and relies on no more of them running than fit.
        """
        if not self.lora_config:
            return []
        adapters: set[int] = set()
        beyond = []
        for request in self.running:
            lora = request.lora_request
            if lora is None or request.request_id in self._paused:
                continue
            if lora.lora_int_id in adapters or len(adapters) < self.lora_config.max_loras:
                adapters.add(lora.lora_int_id)
            else:
                beyond.append(request)
        return beyond

    def _best_waiting(self) -> Request | None:
        """The best in the plan who waits for room, and for nothing else.

        Before them all, as vLLM lets nobody in before it has: who holds KV cache and waits, such as
        a session whose next input came.
        """
        if self.pause_state != PauseState.UNPAUSED:
            return None  # nobody may come in
        holders = (each for each in self.kv_holding_waiting if self._waits_for_room(each))
        return next(holders, None) or self.waiting.best(self._waits_for_room)

    def _waits_for_room(self, request: Request) -> bool:
        return not self._is_blocked_waiting_status(request.status)

    def _make_room(self, best: Request) -> None:
        """Take the last of the paused its slot and its memory, if that may let this one in.

        One at a time: the next step tells whether it was enough.
        """
        missing = self._missing_blocks(best)
        # Whom vLLM refuses for other reasons, such as its adapter, no room would let in. What is
        # missing is not known where a block is not one for all layers.
        is_sure = len(self.kv_cache_config.kv_cache_groups) == 1
        if self._has_slot() and missing <= 0 and (is_sure or best.request_id != self._refused):
            return
        paused = [request for request in self.running if request.request_id in self._paused]
        held = sum(-(-request.num_computed_tokens // self.block_size) for request in paused)
        # If all pause nobody will give room by ending, and vLLM asks for no reserve without them.
        may_do = missing <= held or len(paused) == len(self.running)
        if may_do and self._tokens_left(best) > 0:
            self._evict(self._last_paused())

    def _last_paused(self) -> Request:
        paused = (request for request in self.running if request.request_id in self._paused)
        return max(paused, key=self._running_key)

    def _has_slot(self) -> bool:
        num_held = len(self.running) + self.num_waiting_for_streaming_input
        return bool(num_held < self.max_num_active_reqs)

    def _missing_blocks(self, request: Request) -> int:
        """KV blocks beyond the free ones that it wants; none are missing if that is not above 0.

        Cached blocks that nobody holds are free, too, until it takes them.
        """
        manager = self.kv_cache_manager
        free: int = manager.block_pool.get_num_free_blocks() - manager.watermark_blocks
        held = -(-request.num_computed_tokens // self.block_size)
        wanted = -(-(request.num_tokens + self.num_lookahead_tokens) // self.block_size)
        missing: int = wanted - held - free
        if missing > 0 and not held:
            missing -= shared_blocks(request, manager, self.block_size)
        return missing

    def _tokens_left(self, best: Request) -> float:
        """Of the next step, what those who run and are better leave to this one, who waits."""
        rank = self._rank_of(best)
        better = [
            request
            for request in self.running
            if request.request_id not in self._paused and self._rank_of(request) < rank
        ]
        chunk_tokens = self.scheduler_config.long_prefill_token_threshold or math.inf
        unread = (max(each.num_tokens_with_spec - each.num_computed_tokens, 1) for each in better)
        left: float = self.max_num_scheduled_tokens - sum(
            min(each, chunk_tokens) for each in unread
        )
        return left

    def _readers_behind(self, best: Request) -> list[Request]:
        """Who would be given the next step's tokens for its prompt before this one, who waits;
        best first. None if it has no room anyway."""
        rank = self._rank_of(best)
        behind = [
            request
            for request in self.running
            if request.is_prefill_chunk
            and request.request_id not in self._paused
            and self._rank_of(request) > rank
        ]
        has_room = behind and self._has_slot() and self._missing_blocks(best) <= 0
        return behind if has_room else []

    def _prompts_before(self, reader: Request) -> list[int]:
        """What each of those has to read who wait, and whom vLLM or the plan puts before this one:
        holders of KV cache are always let in first."""
        before = (*self.kv_holding_waiting, *self.waiting.better_than(self._rank_of(reader)))
        return [
            request.num_tokens - max(request.num_computed_tokens, self._cached_tokens(request))
            for request in filter(self._waits_for_room, before)
        ]

    def _cached_tokens(self, request: Request) -> int:
        return cached_tokens(request, self.kv_cache_manager, self.block_size)

    def _rank_of(self, request: Request) -> float:
        return self._rank.get(request.request_id, math.inf)

    def _running_key(self, request: Request) -> tuple[bool, float]:
        return (request.request_id in self._paused, self._rank_of(request))

    def _set_paused(self, request: Request, pause: bool) -> None:
        """A paused request keeps its KV cache and its slot, and is left out of the steps."""
        request_id = request.request_id
        if pause and request_id not in self._paused:
            self._paused[request_id] = request.next_decode_eligible_step
            request.next_decode_eligible_step = NEVER
        elif not pause and request_id in self._paused:
            request.next_decode_eligible_step = self._paused.pop(request_id)

    def _evict(self, request: Request) -> None:
        self.running.remove(request)
        self._refused = ""
        self._preempt_request(
            request, time.monotonic(), drop_stale_output=self.requires_kv_delivery
        )

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Whoever loses its KV cache, by our hand or vLLM's, is not paused but waits."""
        self._set_paused(request, False)
        super()._preempt_request(request, *args, **kwargs)

    def _handle_stopped_request(self, request: Request) -> bool:
        """Whoever got its last token, one that was under way when it was paused, pauses no more."""
        self._set_paused(request, False)
        has_ended: bool = super()._handle_stopped_request(request)
        return has_ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        """Every ended request passes here, whatever ended it."""
        self._refused = ""
        self._paused.pop(request.request_id, None)
        self._blocked.pop(request.request_id, None)
        return super()._free_request(request, delay_free_blocks=delay_free_blocks)
