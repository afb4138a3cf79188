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

from serving.engine.giving_way import NEVER, held_back
from serving.engine.plan_queue import PlanQueue
from serving.engine.prefix_cache import cached_tokens

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as _VllmScheduler
    from vllm.v1.request import Request
else:
    _VllmScheduler = object  # the mixin stands before the vLLM class


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
        self._compiling: dict[str, Request] = {}
        self._was_refused = False
        self._gives_way = True

    def add_request(self, request: Request) -> None:
        """Take a request; one with a grammar is no candidate for room before that is compiled."""
        super().add_request(request)
        if self._is_blocked_waiting_status(request.status):
            self._compiling[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of vLLM's own, in which the best who waits comes before worse who run."""
        self._promote_compiled()
        best = self._best_waiting()
        if best is not None and self._paused and (self._was_refused or self._lacks_room(best)):
            self._evict_last_paused()
        num_running = len(self.running)
        readers = self._readers_behind(best) if best is not None and self._gives_way else []
        needs = self._prompts_before(readers[0]) if readers else []
        left = self.max_num_scheduled_tokens - num_running
        with held_back(readers, needs, left, self.scheduler_config):
            output = super().schedule(throttle_prefills)
        # If nobody came in all the same vLLM has its reasons, and no step is to be empty for that.
        self._gives_way &= not readers or len(self.running) > num_running
        if len(self.running) > num_running:
            self.running.sort(key=self._running_key)
        # Who waits although the step had tokens left wants a slot or memory.
        has_left = output.total_num_scheduled_tokens < self.max_num_scheduled_tokens
        self._was_refused = has_left and self._best_waiting() is not None
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
        self._gives_way = True

    def _promote_compiled(self) -> None:
        """Count those as waiting for room whose grammar is ready, or tell vLLM that it is faulty.

        vLLM itself asks only while it has a slot to give.
        """
        for request_id, request in list(self._compiling.items()):
            is_blocked = self._is_blocked_waiting_status(request.status)
            if not is_blocked or self._handle_blocked_waiting_request(request):
                del self._compiling[request_id]

    def _best_waiting(self) -> Request | None:
        """The best in the plan who waits for room, and for nothing else."""
        if self.pause_state != PauseState.UNPAUSED:
            return None  # nobody may come in
        return self.waiting.best(lambda each: not self._is_blocked_waiting_status(each.status))

    def _lacks_room(self, request: Request) -> bool:
        """Whether no slot is free for it, or not enough memory."""
        num_held = len(self.running) + self.num_waiting_for_streaming_input
        if num_held >= self.max_num_active_reqs:
            return True
        free = self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size
        if request.num_tokens <= free:
            return False
        found = cached_tokens(request, self.kv_cache_manager, self.block_size)
        is_short: bool = request.num_tokens - found > free
        return is_short

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
        return [] if behind and self._lacks_room(best) else behind

    def _prompts_before(self, reader: Request) -> list[int]:
        """What each of those has to read whom the plan puts before this one, and who wait."""
        return [
            request.num_tokens - request.num_computed_tokens
            for request in self.waiting.better_than(self._rank_of(reader))
            if not self._is_blocked_waiting_status(request.status)
        ]

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

    def _evict_last_paused(self) -> None:
        paused = [request for request in self.running if request.request_id in self._paused]
        self._evict(max(paused, key=self._running_key))

    def _evict(self, request: Request) -> None:
        self.running.remove(request)
        self._preempt_request(
            request, time.monotonic(), drop_stale_output=self.requires_kv_delivery
        )

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Whoever loses its KV cache, by our hand or vLLM's, is not paused but waits."""
        self._set_paused(request, False)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        """Every ended request passes here, whatever ended it."""
        self._paused.pop(request.request_id, None)
        self._compiling.pop(request.request_id, None)
        return super()._free_request(request, delay_free_blocks=delay_free_blocks)
