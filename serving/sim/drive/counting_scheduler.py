"""The production scheduler with the counters that comparisons of policies report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.request_ledger import RequestLedger
from serving.engine.scheduler.request_lifecycle import RequestLifecycle
from serving.engine.scheduler.scheduler import SloAsyncScheduler, SloScheduler, SloSchedulerMixin
from serving.policies.table import PolicySpec
from serving.sim.metrics.metrics import EngineCounters
from serving.step_cost import StepSample

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


MAX_SAMPLES = 200_000
"""Most step samples that are kept: steps of several minutes."""


class CountingMixin(SloSchedulerMixin):
    """Counts steps, the time to schedule them, preemptions and recomputed tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lifecycle = self._new_lifecycle()
        self._reset_counters()

    def reset(self, policy: PolicySpec) -> None:
        """Use this policy; forget all counters, and what was learned from earlier requests."""
        self.planner.use(policy)
        self.lifecycle = self._new_lifecycle()
        self._reset_counters()

    def _new_lifecycle(self) -> RequestLifecycle:
        return RequestLifecycle(
            self.planner,
            block_tokens=self.block_size,
            ledger=RequestLedger(self.lifecycle.clock),
            tracker=StepTracker(max_samples=MAX_SAMPLES),
        )

    def _reset_counters(self) -> None:
        self._num_steps = 0
        self._schedule_s = 0.0
        self._preemptions = 0
        self._recomputed_tokens = 0
        self._lost_tokens: dict[str, int] = {}  # request id -> tokens lost to a preemption

    def counters(self) -> EngineCounters:
        """The counters since the start or the last reset."""
        per_step_ms = 1e3 * self._schedule_s / self._num_steps if self._num_steps else None
        return EngineCounters(
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed_tokens,
            steps=self._num_steps,
            schedule_ms_per_step=per_step_ms,
        )

    def samples(self) -> Sequence[StepSample]:
        """The latest measured steps since the start or the last reset, at most MAX_SAMPLES."""
        return self.lifecycle.tracker.samples()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As in production. A preemption is counted when the request is scheduled again."""
        began_s = time.perf_counter()
        output = super().schedule(throttle_prefills)
        self._schedule_s += time.perf_counter() - began_s
        self._num_steps += 1
        # The output lists preempted requests as new or as resumed, depending on the model runner.
        for request_id in self._lost_tokens.keys() & output.num_scheduled_tokens.keys():
            tokens = output.num_scheduled_tokens[request_id]
            kept = self.requests[request_id].num_computed_tokens - tokens
            self._preemptions += 1
            self._recomputed_tokens += max(self._lost_tokens.pop(request_id) - kept, 0)
        return output

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        lost = self._lost_tokens.get(request.request_id, 0)
        self._lost_tokens[request.request_id] = max(lost, request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._lost_tokens.pop(request.request_id, None)
        return super()._free_request(request, delay_free_blocks=delay_free_blocks)


class CountingScheduler(CountingMixin, SloScheduler):
    """For platforms without asynchronous scheduling."""


class CountingAsyncScheduler(CountingMixin, SloAsyncScheduler):
    """For GPUs."""
