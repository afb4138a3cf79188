"""Requests from their arrival to their end: each ends at its caller, and tells those who learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.parameter_tuning import AdaptingPolicy
from serving.engine.scheduler.placement import RoomMixin
from serving.engine.scheduler.request_ledger import Ledger
from serving.errors import InvalidSlo

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

_WHOLE = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class FollowingMixin(RoomMixin):
    """A vLLM scheduler that knows what its requests were promised, and ends some by name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ledger = Ledger()
        self.tracker = StepTracker()
        self._adapting: AdaptingPolicy | None = None
        self._plan_due = True
        self._rejected: dict[str, InvalidSlo] = {}
        self._ended: list[tuple[int, EngineCoreOutput]] = []
        self._ending = ""

    def add_request(self, request: Request) -> None:
        """Take a request; one with malformed tags ends at its caller in the next step.

        One that is here already goes on with more input: under the promise it was given while
        it runs, and as a new arrival after it has waited for that input.
        """
        if not self.get_num_unfinished_requests():  # sessions that wait for input are no work
            self.tracker.idle()
            if self._adapting is not None:
                self._adapting.idle()
        known = self.requests.get(request.request_id)
        if known is None:
            self._follow(request)
            super().add_request(request)
        else:
            super().add_request(request)
            if self.ledger.follows(known.request_id):
                self.ledger.continued(known.request_id)
            elif not known.is_finished():
                self._follow(known)
        self._plan_due = True

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """vLLM's own, and the ends of those that were dropped or rejected."""
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

    def has_requests(self) -> bool:
        """Whether a step is needed: to compute, or to tell callers of an end."""
        return bool(self._ended) or super().has_requests()

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
