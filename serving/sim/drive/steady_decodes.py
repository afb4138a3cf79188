"""The production scheduler for simulations, which spares vLLM the decodes that need no decision.

Under overload almost all of a simulation's time is spent on running decodes: vLLM checks each one
in each step. A decode is steady in a step if it surely gets its one token and needs no KV block. Its
step is then known, so vLLM plans the step without it. Plans, tokens and ends are exactly those of
`SloScheduler`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

from serving.engine.scheduler.scheduler import SloSchedulerMixin

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request


class SteadyDecodes(Scheduler):
    """vLLM's scheduler; steady decodes take a step without its checks.

    For one step at a time, and for requests that have only tokens: no drafts, adapters, grammars,
    images, streamed input, log probabilities or KV connectors. With drafts nothing is steady.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steady: Sequence[Request] = ()  # of the planned step
        self._num_set_aside = 0  # running requests that vLLM does not see now

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As vLLM's, except that no KV blocks and cached data of steady decodes are in it."""
        steady = () if throttle_prefills else self._steady_decodes()
        self._steady = steady
        if not steady:
            return super().schedule(throttle_prefills)
        running = self.running
        with self._set_aside(steady):
            output: SchedulerOutput = super().schedule(throttle_prefills)
        for request in steady:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
        planned = output.num_scheduled_tokens
        steady_ids = {request.request_id for request in steady}
        self.prev_step_scheduled_req_ids |= steady_ids
        in_order = {
            request.request_id: planned.pop(request.request_id, 1)
            for request in running
            if request.request_id in steady_ids or request.request_id in planned
        }
        output.num_scheduled_tokens = in_order | planned  # newly admitted requests are last
        output.total_num_scheduled_tokens += len(steady)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's, in another order: first the requests that were not steady or end now."""
        steady, self._steady = self._steady, ()
        row, sampled = model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids
        tokens = dict(scheduler_output.num_scheduled_tokens)
        continued = []
        for request in steady:
            token_ids = sampled[row[request.request_id]]
            if not self._ends_with(request, token_ids):
                del tokens[request.request_id]
                continued.append((request, token_ids))
        scheduler_output = replace(scheduler_output, num_scheduled_tokens=tokens)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request, token_ids in continued:
            request.num_in_flight_tokens -= 1
            request.append_output_token_ids(token_ids[0])
            output = EngineCoreOutput(request_id=request.request_id, new_token_ids=token_ids)
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(output)
        return outputs

    def get_request_counts(self) -> tuple[int, int]:
        """As vLLM's, with the requests that are set aside."""
        num_running, num_waiting = super().get_request_counts()
        return num_running + self._num_set_aside, num_waiting

    def _ends_with(self, request: Request, token_ids: list[int]) -> bool:
        """Whether a request ends with these tokens, or has ended since the step was planned."""
        params = request.sampling_params
        return (
            request.is_finished()
            or token_ids[0] in params.stop_token_ids
            or request.num_output_tokens + 1 >= request.max_tokens
            or request.num_tokens + 1 >= self.max_model_len
        )

    def _steady_decodes(self) -> Sequence[Request]:
        """The running requests that decode in the next step, whatever vLLM decides about others.

        None if running requests may lack memory, as vLLM then preempts some. If they may lack
        tokens, only those that vLLM serves before the first prefill.
        """
        if self.num_spec_tokens or self.pause_state != PauseState.UNPAUSED:
            return ()
        step, block_tokens = self.current_step + 1, self.block_size
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
                    num_sure = len(steady) if tokens <= self._step_tokens() else 0
                chunk = min(request.num_tokens - request.num_computed_tokens, most_tokens)
                tokens += chunk
                blocks += -(-chunk // block_tokens)
            elif 0 < request.num_computed_tokens % block_tokens < last:
                tokens += 1
                steady.append(request)
            else:
                tokens += 1
                blocks += 1
        if blocks > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return ()
        return steady if tokens <= self._step_tokens() else steady[: num_sure or 0]

    def _step_tokens(self) -> int:
        return min(self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens)

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
            assert len(self.running) >= num_others, "there was memory for all, so none is preempted"
            self.running = running + self.running[num_others:]
            self._change_limits(len(steady))

    def _change_limits(self, count: int) -> None:
        self._num_set_aside -= count
        self.max_num_active_reqs += count
        self.max_num_scheduled_tokens += count
        self.scheduler_config.max_num_batched_tokens += count


class SteadyScheduler(SloSchedulerMixin, SteadyDecodes):
    """The production scheduler, for simulations of many requests."""
