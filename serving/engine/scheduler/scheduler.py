"""Our scheduler inside vLLM: a subclass of vLLM's own that delegates to seven parts.

- `planner.Planner`: the policy, and when its next plan is due.
- `placement.Placement`: the plan's order among running and waiting requests: pause, evict, skip.
- `request_lifecycle.RequestLifecycle`: each request from arrival to end: its SLO, record and error.
- `speculation.Speculation`: converts between vLLM's steps with drafts and steps of one token.
- `step_timer.StepTimer`: the duration of each step.
- `status_sender.StatusSender`: what the API server hears of the engine.
- `checkpoints.Checkpoints`: what another engine hears of it, after this one has ended.

vLLM's scheduler interface is not public. So vLLM is pinned exactly, its methods are overridden in
this module only (simulations subclass it, to count and to be fast), and a contract test lists every
attribute of vLLM that is used.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import (
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)
from vllm.v1.request import RequestStatus

from serving.engine.scheduler.checkpoints import Checkpoints
from serving.engine.scheduler.placement import Placement
from serving.engine.scheduler.planner import Planner
from serving.engine.scheduler.request_lifecycle import RequestLifecycle
from serving.engine.scheduler.speculation import Speculation
from serving.engine.scheduler.status_sender import StatusSender, status_of
from serving.engine.scheduler.step_output import composition_of, num_accepted_drafts
from serving.engine.scheduler.step_timer import OverlappingStepTimer, StepTimer
from serving.engine.setup.cache_folder import cache_root
from serving.engine.setup.parent_process import end_with_parent
from serving.errors import BEGUN_STOP_REASON, dropped_stop_reason, rejected_stop_reason
from serving.policies.table import PolicySpec
from serving.step_cost import Composition
from serving.view import Plan, StepView

if TYPE_CHECKING:
    from vllm.config.vllm import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as _VllmScheduler
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
else:
    _VllmScheduler = object  # the vLLM class comes after the mixin

logger = init_logger("vllm.orchestrate")  # below vLLM's root logger, so that its handlers show it

CONFIG_KEY = "orchestrate"
"""Where our settings are in vLLM's ``additional_config``."""


class SloSchedulerMixin(_VllmScheduler):
    """vLLM's scheduler, following a policy's plans. A mixin: list it before the vLLM class."""

    timer_class: type[StepTimer] = StepTimer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = (self.vllm_config.additional_config or {}).get(CONFIG_KEY, {})
        self.planner = Planner(PolicySpec.from_json(settings.get("policy", {"name": "fcfs"})))
        self.placement = Placement(self)
        self.lifecycle = RequestLifecycle(self.planner, block_tokens=self.block_size)
        self.speculation = Speculation() if self.num_spec_tokens else None
        self.step_timer = self.timer_class()
        self.composition = Composition(0, 0, 0, ())
        self._status_sender = StatusSender.of_environment()
        keeps_state = settings.get("keep_scheduler_state", False)
        self._checkpoints = _checkpoints_of(self.vllm_config) if keeps_state else None
        self._plans, self._plan_s = 0, 0.0
        self._ends_to_report: list[tuple[int, EngineCoreOutput]] = []
        self._engine_step_tokens: int = self.max_num_scheduled_tokens
        self._engine_chunk_tokens: int = self.scheduler_config.long_prefill_token_threshold
        # Without chunks a prompt larger than the plan's step budget would never be admitted.
        self._splits_prompts = (
            self.scheduler_config.enable_chunked_prefill
            and not self.scheduler_config.disable_chunked_mm_input
        )
        logger.info("scheduler class %s, policy %s", type(self).__name__, self.planner.spec.name)
        end_with_parent()
        checkpoint = self._checkpoints.read() if self._checkpoints is not None else None
        if checkpoint is not None:
            state, age_s = checkpoint
            self.lifecycle.restore(state, age_s=age_s)
        self._send_status()

    # Overrides of vLLM's methods: each calls vLLM's own once.

    def add_request(self, request: Request) -> None:
        """Take a request; one with malformed SLO tags ends with an error in the next step.

        A request that is known already is a streamed session that receives more input. While it
        runs, it keeps its SLO; if it was waiting for the input, it counts as a new arrival.
        """
        if not self.get_num_unfinished_requests():  # sessions that wait for input do not count
            self.lifecycle.idle()
        known = self.requests.get(request.request_id)
        if known is None:
            self.lifecycle.begin(request, cached_tokens=self.placement.cached_tokens(request))
            super().add_request(request)
            self.placement.add(request)
        else:
            super().add_request(request)
            if self.lifecycle.follows(known):
                self.lifecycle.extended(known)
            elif not known.is_finished():
                self.lifecycle.begin(known, cached_tokens=self.placement.cached_tokens(known))
        self.planner.plan_due = True

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of vLLM's own scheduler, over what the plan admits."""
        self.planner.tune(self.lifecycle.clock())
        for request_id, error in self.lifecycle.rejected():
            self._end(request_id, rejected_stop_reason(error))
        if self.placement.update_blocked():
            self.planner.plan_due = True
        if self.planner.is_due(
            step=self.current_step,
            now_s=self.lifecycle.clock(),
            is_computing=len(self.running) > len(self.placement.paused),
        ):
            began_s = time.perf_counter()
            self._follow(self.planner.decide(self.view()))
            self._plans, self._plan_s = (
                self._plans + 1,
                self._plan_s + time.perf_counter() - began_s,
            )
        with self.placement.plan_order_in_step():
            output = super().schedule(throttle_prefills)
        self.placement.step_planned(output, throttle_prefills=throttle_prefills)
        self._account_for(output)
        self.step_timer.launched(self.lifecycle.tracker, self.composition, self.lifecycle.clock())
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """vLLM's outputs, plus the ends of requests that were dropped or rejected."""
        self.step_timer.completed(self.lifecycle.tracker, self.lifecycle.clock())
        if self.speculation is not None:
            self.speculation.completed(num_accepted_drafts(scheduler_output, model_runner_output))
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        self.lifecycle.delivered(outputs)
        for client_index, ended in self._ends_to_report:
            outputs.setdefault(client_index, EngineCoreOutputs()).outputs.append(ended)
        self._ends_to_report.clear()
        self._send_status()
        self._keep_state()
        return outputs

    def has_requests(self) -> bool:
        """Whether a step is needed: to compute, or to report an end."""
        return bool(self._ends_to_report) or super().has_requests()

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As vLLM's. While vLLM admits no new requests, running ones finish without a pause."""
        super().set_pause_state(pause_state)
        self.planner.plan_now()

    def shutdown(self) -> None:
        """As vLLM's, which calls it when the engine ends; its server kills the engine instead."""
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is not None:
            checkpoints.close(self.lifecycle.state())
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """As vLLM's. A request that loses its KV cache, for whatever reason, is not paused."""
        self.lifecycle.lost_cache(request)
        self.placement.resume(request)
        super()._preempt_request(request, *args, **kwargs)

    def _handle_stopped_request(self, request: Request) -> bool:
        """As vLLM's. A request may stop while paused, by a token of a step that was in flight.

        A session that waits for more input is in no plan until that input arrives.
        """
        self.placement.resume(request)
        has_ended: bool = super()._handle_stopped_request(request)
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self.lifecycle.part_ended(request)
            self.planner.plan_due = True
        return has_ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        """As vLLM's, which calls it for every request that ends, for whatever reason."""
        if self.lifecycle.follows(request):
            self.lifecycle.ended(request)
            self.planner.plan_due = True
        self.placement.remove(request)
        freed = super()._free_request(request, delay_free_blocks=delay_free_blocks)
        # No step follows the last one that would say so. Of several that are aborted together, vLLM
        # takes all out of its queues before it frees the first.
        if self.lifecycle.ledger.is_empty and not self.get_num_unfinished_requests():
            self._send_status()
            self._keep_state()
        return freed

    # Planning.

    def view(self) -> StepView:
        """The policy's input: requests, recent arrivals and measured costs, now."""
        ledger, tracker = self.lifecycle.ledger, self.lifecycle.tracker
        blocks = self.kv_cache_manager.block_pool
        arrivals, arrivals_s, counts = ledger.arrivals()
        view = StepView(
            now_s=ledger.clock(),
            requests=ledger.requests(
                self.running, self.placement.paused, without=self.placement.blocked
            ),
            slots=self.max_num_active_reqs,
            step_tokens=self._engine_step_tokens,
            token_s=tracker.token_s,
            prefill_token_s=tracker.prefill_token_s,
            mean_step_s=tracker.mean_step_s,
            model=tracker.model,
            kv_tokens=blocks.num_gpu_blocks * self.block_size,
            free_kv_tokens=blocks.get_num_free_blocks() * self.block_size,
            arrivals=arrivals,
            arrivals_s=arrivals_s,
            arrival_counts=counts,
        )
        return view if self.speculation is None else self.speculation.view_of(view)

    def _follow(self, plan: Plan) -> None:
        """Carry out a plan: drops, evictions, pauses, order, token budgets."""
        for request_id, reason in plan.drop:
            self._end(request_id, dropped_stop_reason(reason))
        for request_id in self.lifecycle.dummies & plan.run:
            self._end(request_id, BEGUN_STOP_REASON)
        ranked = plan.run.union(request.request_id for request in self.running)
        best_first = islice(filter(ranked.__contains__, plan.order), len(ranked))
        rank = {request_id: place for place, request_id in enumerate(best_first)}
        if self.pause_state == PauseState.UNPAUSED:  # else running requests are to finish
            for request in [r for r in self.running if r.request_id in plan.preempt]:
                self.placement.evict(request)
        self.placement.follow(rank, plan.run)
        plan = self._for_engine_steps(plan)
        self._set_token_budgets(plan)
        self.planner.follow(plan, step=self.current_step)

    def _for_engine_steps(self, plan: Plan) -> Plan:
        """The plan as vLLM's steps can follow it: chunks and drafts."""
        if not self._splits_prompts:
            plan = plan._replace(step_tokens=None, chunk_tokens=None)
        if self.speculation is None:
            return plan
        decodes = (each for each in self.running if not each.is_prefill_chunk)
        num_decodes = sum(each.request_id in plan.run for each in decodes)
        return self.speculation.plan_of(
            plan, num_decodes=num_decodes, step_tokens=self._engine_step_tokens
        )

    def _set_token_budgets(self, plan: Plan) -> None:
        """Set vLLM's token budget of a step and its limit on a prompt's chunk."""
        least_tokens = self.placement.min_chunk_tokens
        step_tokens = max(plan.step_tokens or self._engine_step_tokens, least_tokens)
        self.max_num_scheduled_tokens = min(step_tokens, self._engine_step_tokens)
        chunk_tokens = plan.chunk_tokens or self._engine_chunk_tokens
        if chunk_tokens:
            chunk_tokens = max(chunk_tokens, least_tokens)
        self.scheduler_config.long_prefill_token_threshold = chunk_tokens

    def _account_for(self, output: SchedulerOutput) -> None:
        """Count what the step computes for each request, and the prefix-cache hits of new ones."""
        ledger = self.lifecycle.ledger
        ledger.started(
            {
                new.req_id: new.num_computed_tokens
                for new in output.scheduled_new_reqs
                if not self.requests[new.req_id].num_preemptions  # else it finds its own blocks
            }
        )
        self.composition = composition_of(output, self.requests)
        tokens_per_decode = 1.0
        if self.speculation is not None:
            num_drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
            self.speculation.launched(self.composition.num_decodes, num_drafts)
            tokens_per_decode = self.speculation.kept_per_decode
        ledger.computed(
            output.num_scheduled_tokens,
            drafts=output.scheduled_spec_decode_tokens,
            tokens_per_decode=tokens_per_decode,
        )

    def _send_status(self) -> None:
        """Tell the API server about the engine, if there is one and a message is due."""
        if self._status_sender is None:
            return
        now_s, is_idle = self.lifecycle.clock(), not self.get_num_unfinished_requests()
        if self._status_sender.is_due(now_s, is_idle=is_idle):
            status = status_of(
                self.view(),
                self.lifecycle.tracker,
                block_tokens=self.block_size,
                plans=self._plans,
                plan_s=self._plan_s,
            )
            self._status_sender.send(status, now_s, is_idle=is_idle)

    def _keep_state(self) -> None:
        """Write what was learned, if a checkpoint is due."""
        if self._checkpoints is None:
            return
        if self._checkpoints.is_due(is_idle=not self.get_num_unfinished_requests()):
            self._checkpoints.write(self.lifecycle.state())

    def _end(self, request_id: str, stop_reason: str) -> None:
        """End a request; its stop reason carries the named error to the caller."""
        self.lifecycle.ending(request_id)
        for request in self.finish_requests(request_id, RequestStatus.FINISHED_ABORTED):
            if self.log_stats:  # else vLLM would count a negative wait of one that never ran
                request.record_event(EngineCoreEventType.SCHEDULED)
            output = EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[],
                finish_reason=FinishReason.ABORT,
                stop_reason=stop_reason,
                events=request.take_events(),
                trace_headers=request.trace_headers,
            )
            self._ends_to_report.append((request.client_index, output))


class SloScheduler(SloSchedulerMixin, Scheduler):
    """For platforms without asynchronous scheduling, the CPU among them."""


class SloAsyncScheduler(SloSchedulerMixin, AsyncScheduler):
    """For GPUs: deriving from Scheduler there would switch asynchronous scheduling off."""

    timer_class = OverlappingStepTimer


def _checkpoints_of(config: VllmConfig) -> Checkpoints | None:
    """The engine's checkpoints, in the user's cache."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return Checkpoints.open(
        cache_root() / "schedulers",
        model=config.model_config.model,
        # vLLM's hash covers whatever changes what it computes, and with what.
        machine=f"{config.compute_hash()} {current_platform.get_device_name()} {threads}",
    )
