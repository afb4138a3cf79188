"""Our scheduler inside vLLM: ask the policy, honour the plan.

vLLM's scheduler interface is not public, so vLLM is pinned exactly and a contract test names
every attribute that is touched here.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from serving.engine.adapting import AdaptingPolicy
from serving.engine.parent import end_with_parent
from serving.engine.room import RoomMixin
from serving.engine.tracker import StepTracker
from serving.engine.translate import Ledger, composition_of
from serving.errors import InvalidSlo, dropped_stop_reason, rejected_stop_reason
from serving.policies.table import PolicySpec
from serving.sim.step_cost import Composition
from serving.view import Plan, Policy, StepView, plan_faults

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.orchestrate")  # under vLLM's root, so that its handlers show it

CONFIG_KEY = "orchestrate"
"""Where our settings lie in vLLM's ``additional_config``."""

_WHOLE = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class SloSchedulerMixin(RoomMixin):
    """Plans at every arrival and end, and when the last plan runs out; else the plan holds.

    A plan that asks for it holds for a few steps whatever happens, as long as somebody is computed
    in them, and what happened meanwhile is answered by one new plan.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ledger = Ledger()
        self.tracker = StepTracker()
        self._own_step_tokens: int = self.max_num_scheduled_tokens
        self._own_chunk_tokens: int = self.scheduler_config.long_prefill_token_threshold
        self.composition = Composition(0, 0, 0, ())
        self._ended: list[tuple[int, EngineCoreOutput]] = []
        self._rejected: dict[str, InvalidSlo] = {}
        self._ending = ""
        self._plan_due = True
        self._plan_holds_step = self._plan_ends_step = 0
        self._plan_ends_s = math.inf
        settings = (self.vllm_config.additional_config or {}).get(CONFIG_KEY, {})
        self.use_policy(PolicySpec.from_json(settings.get("policy", {"name": "fcfs"})))
        logger.info("scheduler class %s, policy %s", type(self).__name__, self.policy_spec.name)
        end_with_parent()

    def use_policy(self, spec: PolicySpec) -> None:
        """Plan by this policy from the next step on."""
        self.policy_spec = spec
        self._adapting = AdaptingPolicy.of(spec)
        self._decide: Policy = spec.build() if self._adapting is None else self._adapting.policy
        self._plan_due = True
        self._plan_holds_step = 0

    def add_request(self, request: Request) -> None:
        """Take a request; one with malformed tags ends at its caller in the next step.

        One that is here already goes on with more input: under the promise it was given while
        it runs, and as a new arrival after it has waited for that input.
        """
        known = self.requests.get(request.request_id)
        if known is None:
            if not self.requests:
                self.tracker.idle()
                if self._adapting is not None:
                    self._adapting.idle()
            self._follow(request)
            super().add_request(request)
        else:
            super().add_request(request)
            if self.ledger.follows(known.request_id):
                self.ledger.continued(known.request_id)
            elif not known.is_finished():
                self._follow(known)
        self._plan_due = True

    def _follow(self, request: Request) -> None:
        """From now on it is in the plans."""
        error = self.ledger.admit(request, cached_tokens=self._cached_tokens(request))
        if error is not None:
            self._rejected[request.request_id] = error
        elif self._adapting is not None:
            self._adapting.begin(
                request.request_id,
                self.ledger.slo(request.request_id),
                self.ledger.clock(),
                prompt_tokens=request.num_prompt_tokens,
            )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of vLLM's own scheduler, over what the plan admits."""
        if self._adapting is not None and self._adapting.turn(self.ledger.clock()):
            self._decide = self._adapting.policy
            self._plan_due = True
        for request_id, error in list(self._rejected.items()):
            self._end(request_id, rejected_stop_reason(error))
        self._plan_due |= self._promote_compiled()
        if self._plan_has_ended():
            self._honour(*self._make_plan())
        output = super().schedule(throttle_prefills)
        self.ledger.began(
            {
                new.req_id: new.num_computed_tokens
                for new in output.scheduled_new_reqs
                if not self.requests[new.req_id].num_preemptions  # it found its own, too
            }
        )
        self.ledger.computed(output.num_scheduled_tokens)
        self.composition = composition_of(output, self.requests)
        self._launched(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """vLLM's own, and the ends of those that were dropped or rejected."""
        self._completed(scheduler_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        if self._adapting is not None:
            now_s = self.ledger.clock()
            for batch in outputs.values():
                for output in batch.outputs:
                    self._adapting.deliver(output.request_id, len(output.new_token_ids), now_s)
        for client_index, ended in self._ended:
            outputs.setdefault(client_index, EngineCoreOutputs()).outputs.append(ended)
        self._ended.clear()
        return outputs

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As vLLM's; while nobody new comes in, those who run end without a pause."""
        super().set_pause_state(pause_state)
        self._plan_due = True
        self._plan_holds_step = 0

    def has_requests(self) -> bool:
        """Whether a step is needed: to compute, or to tell callers of an end."""
        return bool(self._ended) or super().has_requests()

    def _launched(self, output: SchedulerOutput) -> None:
        """A step is on its way: the former one has ended."""
        self.tracker.begin(self.ledger.clock(), self.composition)

    def _completed(self, output: SchedulerOutput) -> None:
        """A step's tokens are here."""

    def _handle_stopped_request(self, request: Request) -> bool:
        """A session that waits for more input is in no plan until that comes."""
        has_ended: bool = super()._handle_stopped_request(request)
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self._forget(request, is_whole=True, is_answer=False)
        return has_ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        """Every ended request passes here, whatever ended it."""
        if self.ledger.follows(request.request_id):
            is_whole = request.status in _WHOLE or self._has_met_a_stop(request)
            self._forget(request, is_whole=is_whole)
        return super()._free_request(request, delay_free_blocks=delay_free_blocks)

    def _forget(self, request: Request, *, is_whole: bool, is_answer: bool = True) -> None:
        self._plan_due = True
        self._rejected.pop(request.request_id, None)
        self._count_end(request, is_whole)
        self.ledger.forget(request.request_id, is_whole=is_whole, is_answer=is_answer)

    def _has_met_a_stop(self, request: Request) -> bool:
        """Whether the front end may have found one of its stop strings: it then aborts the request,
        and nothing tells that from a caller who left."""
        params, ended_by_us = request.sampling_params, request.request_id == self._ending
        has_stops = params is not None and bool(params.stop)
        return has_stops and not ended_by_us and request.num_output_tokens > 0

    def _count_end(self, request: Request, is_whole: bool) -> None:
        """Tell those who learn from ends."""
        now_s, request_id = self.ledger.clock(), request.request_id
        output_tokens = request.num_output_tokens
        if self._adapting is not None:
            self._adapting.end(request_id, output_tokens, now_s, whole=is_whole)
        due_s = self.ledger.last_due_s(request_id, output_tokens)
        self.tracker.ended(self.ledger.slo(request_id).kind, is_whole and now_s <= due_s)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Whoever loses its KV cache, by our hand or vLLM's, reads it again."""
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        self.tracker.lost(num_blocks, self.block_size)
        super()._preempt_request(request, *args, **kwargs)

    def _plan_has_ended(self) -> bool:
        is_computing = len(self.running) > len(self._paused)
        if is_computing and self.current_step < self._plan_holds_step:
            return False
        return (
            self._plan_due
            or self.current_step >= self._plan_ends_step
            or self.ledger.clock() >= self._plan_ends_s
        )

    def _make_plan(self) -> tuple[StepView, Plan]:
        blocks = self.kv_cache_manager.block_pool
        arrivals, arrivals_s = self.ledger.arrivals()
        view = StepView(
            now_s=self.ledger.clock(),
            requests=self.ledger.requests(self.running, self._paused, without=self._compiling),
            slots=self.max_num_active_reqs,
            step_tokens=self._own_step_tokens,
            token_s=self.tracker.token_s,
            prefill_token_s=self.tracker.prefill_token_s,
            model=self.tracker.model,
            kv_tokens=blocks.num_gpu_blocks * self.block_size,
            free_kv_tokens=blocks.get_num_free_blocks() * self.block_size,
            arrivals=arrivals,
            arrivals_s=arrivals_s,
        )
        plan = self._decide(view)
        faults = plan_faults(view, plan)
        assert not faults, f"policy {self.policy_spec.name}: {'; '.join(faults)}"
        return view, plan

    def _honour(self, view: StepView, plan: Plan) -> None:
        for request_id, reason in plan.drop:
            self._end(request_id, dropped_stop_reason(reason))
        ranked = plan.run.union(request.request_id for request in self.running)
        best_first = islice(filter(ranked.__contains__, plan.order), len(ranked))
        rank = {request_id: place for place, request_id in enumerate(best_first)}
        if self.pause_state == PauseState.UNPAUSED:  # else who runs is to end
            for request in [r for r in self.running if r.request_id in plan.preempt]:
                self._evict(request)
        self._take_places(rank, plan.run)
        self.max_num_scheduled_tokens = plan.step_tokens or self._own_step_tokens
        self.scheduler_config.long_prefill_token_threshold = (
            plan.chunk_tokens or self._own_chunk_tokens
        )
        self._plan_due = False
        self._plan_holds_step = self.current_step + plan.least_steps
        self._plan_ends_step = self.current_step + plan.steps
        self._plan_ends_s = plan.until_s

    def _end(self, request_id: str, stop_reason: str) -> None:
        """End a request at its caller, with a stop reason that names the error."""
        self._ending = request_id
        for request in self.finish_requests(request_id, RequestStatus.FINISHED_ABORTED):
            output = EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[],
                finish_reason=FinishReason.ABORT,
                stop_reason=stop_reason,
                events=request.take_events(),
                trace_headers=request.trace_headers,
            )
            self._ended.append((request.client_index, output))


class SloScheduler(SloSchedulerMixin, Scheduler):
    """For platforms without asynchronous scheduling, the CPU among them."""


class SloAsyncScheduler(SloSchedulerMixin, AsyncScheduler):
    """For GPUs: deriving from Scheduler there would switch asynchronous scheduling off.

    A step is planned while the one before it is computed, so that each is timed from its own
    launch, or from the end of the one before it, to the coming of its tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._under_way: deque[tuple[Composition, float]] = deque()
        self._last_end_s = -math.inf

    def _launched(self, output: SchedulerOutput) -> None:
        self._under_way.append((self.composition, self.ledger.clock()))

    def _completed(self, output: SchedulerOutput) -> None:
        composition, launched_s = self._under_way.popleft()  # vLLM completes them in their order
        now_s = self.ledger.clock()
        if composition.new_tokens:
            self.tracker.took(composition, now_s - max(launched_s, self._last_end_s))
        self._last_end_s = now_s
