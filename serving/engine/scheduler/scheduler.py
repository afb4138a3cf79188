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

from serving.engine.scheduler.parameter_tuning import AdaptingPolicy
from serving.engine.scheduler.request_ledger import composition_of, num_accepted
from serving.engine.scheduler.request_lifecycle import FollowingMixin
from serving.engine.scheduler.speculation import Speculation
from serving.engine.setup.parent_process import end_with_parent
from serving.errors import dropped_stop_reason, rejected_stop_reason
from serving.policies.table import PolicySpec
from serving.step_cost import Composition
from serving.view import Plan, Policy, StepView, plan_faults

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput

logger = init_logger("vllm.orchestrate")  # under vLLM's root, so that its handlers show it

CONFIG_KEY = "orchestrate"
"""Where our settings lie in vLLM's ``additional_config``."""


class SloSchedulerMixin(FollowingMixin):
    """Plans at every arrival and end, and when the last plan runs out; else the plan holds.

    A plan that asks for it holds for a few steps whatever happens, as long as somebody is computed
    in them, and what happened meanwhile is answered by one new plan.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._speculation = Speculation() if self.num_spec_tokens else None
        self._own_step_tokens: int = self.max_num_scheduled_tokens
        self._own_chunk_tokens: int = self.scheduler_config.long_prefill_token_threshold
        # Else a prompt that is larger than a plan's step would never come in.
        self._cuts_prompts = (
            self.scheduler_config.enable_chunked_prefill
            and not self.scheduler_config.disable_chunked_mm_input
        )
        self.composition = Composition(0, 0, 0, ())
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

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of vLLM's own scheduler, over what the plan admits."""
        if self._adapting is not None and self._adapting.turn(self.ledger.clock()):
            self._decide = self._adapting.policy
            self._plan_due = True
        for request_id, error in list(self._rejected.items()):
            self._end(request_id, rejected_stop_reason(error))
        self._plan_due |= self._block_or_promote()
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
        self.composition = composition_of(output, self.requests)
        if self._speculation is not None:
            drafts = map(len, output.scheduled_spec_decode_tokens.values())
            self._speculation.launched(self.composition.num_decodes, sum(drafts))
        self.ledger.computed(
            output.num_scheduled_tokens,
            drafts=output.scheduled_spec_decode_tokens,
            decode_brings=1.0 if self._speculation is None else self._speculation.brings,
        )
        self._launched(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As before; a step's tokens tell how long it took, and what its drafts came to."""
        self._completed(scheduler_output)
        if self._speculation is not None:
            self._speculation.completed(num_accepted(scheduler_output, model_runner_output))
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        return outputs

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As vLLM's; while nobody new comes in, those who run end without a pause."""
        super().set_pause_state(pause_state)
        self._plan_due = True
        self._plan_holds_step = 0

    def _launched(self, output: SchedulerOutput) -> None:
        """A step is on its way: the former one has ended."""
        self.tracker.begin(self.ledger.clock(), self.composition)

    def _completed(self, output: SchedulerOutput) -> None:
        """A step's tokens are here."""

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
        arrivals, arrivals_s, counts = self.ledger.arrivals()
        view = StepView(
            now_s=self.ledger.clock(),
            requests=self.ledger.requests(self.running, self._paused, without=self._blocked),
            slots=self.max_num_active_reqs,
            step_tokens=self._own_step_tokens,
            token_s=self.tracker.token_s,
            prefill_token_s=self.tracker.prefill_token_s,
            mean_step_s=self.tracker.mean_step_s,
            model=self.tracker.model,
            kv_tokens=blocks.num_gpu_blocks * self.block_size,
            free_kv_tokens=blocks.get_num_free_blocks() * self.block_size,
            arrivals=arrivals,
            arrivals_s=arrivals_s,
            arrival_counts=counts,
        )
        view = view if self._speculation is None else self._speculation.shown(view)
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
        plan = self._for_real_steps(plan)
        step_tokens = max(plan.step_tokens or self._own_step_tokens, self._least_chunk_tokens)
        self.max_num_scheduled_tokens = min(step_tokens, self._own_step_tokens)
        chunk_tokens = plan.chunk_tokens or self._own_chunk_tokens
        if chunk_tokens:
            chunk_tokens = max(chunk_tokens, self._least_chunk_tokens)
        self.scheduler_config.long_prefill_token_threshold = chunk_tokens
        self._plan_due = False
        self._plan_holds_step = self.current_step + plan.least_steps
        self._plan_ends_step = self.current_step + plan.steps
        self._plan_ends_s = plan.until_s

    def _for_real_steps(self, plan: Plan) -> Plan:
        """The plan as far as vLLM's steps can follow it."""
        if not self._cuts_prompts:
            plan = plan._replace(step_tokens=None, chunk_tokens=None)
        if self._speculation is None:
            return plan
        decodes = (each for each in self.running if not each.is_prefill_chunk)
        num_decodes = sum(each.request_id in plan.run for each in decodes)
        return self._speculation.meant(
            plan, num_decodes=num_decodes, step_tokens=self._own_step_tokens
        )


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
