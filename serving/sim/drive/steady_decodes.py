"""The production scheduler for simulations, which spares vLLM the decodes that need no decision.

Under overload almost all of a simulation's time is spent on running decodes: vLLM checks each one
in each step. A decode is steady in a step if it surely gets one token, does not end, and needs no
KV block. Its step is then known, so vLLM plans and completes the step without it. Plans, tokens and
ends are exactly those of `SloScheduler`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from serving.engine.scheduler.scheduler import SloSchedulerMixin
from serving.sim.drive.virtual_engine import WORD

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request


class SteadyDecodes(Scheduler):
    """vLLM's scheduler; steady decodes take a step without its checks.

    For one step at a time, and for requests that have only tokens: no adapters, grammars, images,
    streamed input, log probabilities or KV connectors. With drafts nothing is steady.

    Attributes:
        answer_tokens: request id -> true length of the answer, or of its present part; at most the
            request's own limit.
        steady: requests that are steady in the planned step.
        planned: request id -> its tokens in the planned step, of the other requests.
    """

    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answer_tokens: Mapping[str, int] = {}
        self.steady: Sequence[Request] = ()
        self.planned: Mapping[str, int] = {}
        self._num_set_aside = 0  # running requests that vLLM does not see now

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As vLLM's; of steady decodes only the number of tokens is in it."""
        self.steady = steady = () if throttle_prefills else self._find_steady()
        running = self.running
        with self._set_aside(steady):
            output: SchedulerOutput = super().schedule(throttle_prefills)
        self.planned = planned = output.num_scheduled_tokens
        steady_ids = {request.request_id for request in steady}
        for request in steady:
            request.num_computed_tokens += 1
        self.prev_step_scheduled_req_ids |= steady_ids
        in_order = {
            request.request_id: planned.get(request.request_id, 1)
            for request in running
            if request.request_id in steady_ids or request.request_id in planned
        }
        output.num_scheduled_tokens = in_order | planned  # new ones are last
        output.total_num_scheduled_tokens += len(steady)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's, for the output of the requests that are not steady; no other is in it."""
        for request in self.steady:
            request.append_output_token_ids(WORD)
        scheduler_output = replace(scheduler_output, num_scheduled_tokens=self.planned)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        return outputs

    def get_request_counts(self) -> tuple[int, int]:
        """As vLLM's, with the requests that are set aside."""
        num_running, num_waiting = super().get_request_counts()
        return num_running + self._num_set_aside, num_waiting

    def _find_steady(self) -> Sequence[Request]:
        """The running requests that are steady in the next step, whatever vLLM decides on others.

        None if running requests may lack memory, as vLLM then preempts some. If they may lack
        tokens, only those that vLLM serves before the first prefill.
        """
        if self.num_spec_tokens or self.pause_state != PauseState.UNPAUSED:
            return ()
        step, block_tokens = self.current_step + 1, self.block_size
        answer_tokens, step_tokens = self.answer_tokens, self._step_tokens()
        most_tokens = self.scheduler_config.long_prefill_token_threshold or self.max_model_len
        # A block that fills is entered in the prefix cache.
        last = block_tokens - 1 if self.cache_config.enable_prefix_caching else block_tokens
        steady: list[Request] = []
        num_sure = None  # steady decodes before the first prefill
        tokens = blocks = 0
        for request in self.running:
            if request.next_decode_eligible_step > step:
                continue
            if request.is_prefill_chunk:
                if num_sure is None:
                    num_sure = len(steady) if tokens <= step_tokens else 0
                chunk = min(request.num_tokens - request.num_computed_tokens, most_tokens)
                tokens += chunk
                blocks += -(-chunk // block_tokens)
                continue
            tokens += 1
            has_slot = 0 < request.num_computed_tokens % block_tokens < last
            if has_slot and request.num_output_tokens + 1 < answer_tokens[request.request_id]:
                steady.append(request)
            else:
                blocks += 1
        if blocks > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return ()
        return steady if tokens <= step_tokens else steady[: num_sure or 0]

    def _step_tokens(self) -> int:
        step_tokens: int = min(
            self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens
        )
        return step_tokens

    @contextmanager
    def _set_aside(self, steady: Sequence[Request]) -> Iterator[None]:
        """Let vLLM plan a step without these requests, their tokens and their slots."""
        running, is_steady = self.running, set(steady)
        self.running = [request for request in running if request not in is_steady]
        num_others = len(self.running)
        self._change_limits(-len(steady))
        try:
            yield
        finally:
            if steady:
                assert len(self.running) >= num_others, "there was memory, so none is preempted"
                self.running = running + self.running[num_others:]
            self._change_limits(len(steady))

    def _change_limits(self, count: int) -> None:
        self._num_set_aside -= count
        self.max_num_active_reqs += count
        self.max_num_scheduled_tokens += count
        self.scheduler_config.max_num_batched_tokens += count


class SteadyScheduler(SloSchedulerMixin, SteadyDecodes):
    """The production scheduler, for simulations of many requests."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As in production."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.planner.tuned is not None:
            now_s = self.lifecycle.clock()
            for request in self.steady:
                self.planner.tuned.deliver(request.request_id, 1, now_s)
        return outputs
