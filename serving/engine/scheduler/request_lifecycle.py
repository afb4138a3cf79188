"""Each request from its arrival to its end: its SLO, its record, and what is learned from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.checkpoints import SchedulerState
from serving.engine.scheduler.planner import Planner
from serving.engine.scheduler.request_ledger import Clock, RequestLedger
from serving.errors import InvalidSlo

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.request import Request

_COMPLETE = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class RequestLifecycle:
    """Reports the events of requests to the ledger, the step tracker and a tuned policy.

    Args:
        planner: its tuned policy counts the tokens that are in time.
        block_tokens: tokens of a KV block.
        ledger, tracker: new ones by default.
    Attributes:
        dummies: ids of the requests that only wait for their turn (`Slo.dummy`).
    """

    def __init__(
        self,
        planner: Planner,
        *,
        block_tokens: int,
        ledger: RequestLedger | None = None,
        tracker: StepTracker | None = None,
    ) -> None:
        self.ledger = ledger or RequestLedger()
        self.tracker = tracker or StepTracker()
        self._planner = planner
        self._block_tokens = block_tokens
        self.dummies: set[str] = set()
        # With the token that ends the part; None: the first one does.
        self._first_parts: dict[str, tuple[Request, int | None]] = {}
        self._rejected: dict[str, InvalidSlo] = {}
        self._ending = ""  # the request that the scheduler itself ends now

    @property
    def clock(self) -> Clock:
        """The scheduler's clock, in seconds."""
        return self.ledger.clock

    def state(self) -> SchedulerState:
        """What was learned, for a checkpoint."""
        return SchedulerState(self.ledger.users.state(self.clock()), self.tracker.state())

    def restore(self, state: SchedulerState, *, age_s: float) -> None:
        """Begin with what an engine had learned `age_s` seconds ago; call it before any other."""
        self.ledger.users.restore(state.users, self.clock(), age_s=age_s)
        if state.steps is not None:
            self.tracker.restore(state.steps)

    def idle(self) -> None:
        """The engine has no work: the time until the next step is part of no step and no epoch."""
        self.tracker.idle()
        if self._planner.tuned is not None:
            self._planner.tuned.idle()

    def begin(self, request: Request, *, cached_tokens: int) -> None:
        """A request arrives and is in the plans from now on.

        Args:
            cached_tokens: prompt tokens that the prefix cache holds.
        """
        error = self.ledger.add(request, cached_tokens=cached_tokens)
        slo = self.ledger.slo(request.request_id)
        if slo.dummy:
            self.dummies.add(request.request_id)
        if slo.then_tbt_s is not None:
            self._first_parts[request.request_id] = request, slo.then_token
        if error is not None:
            self._rejected[request.request_id] = error
        elif self._planner.tuned is not None:
            self._planner.tuned.begin(
                request.request_id,
                slo,
                self.clock(),
                prompt_tokens=request.num_prompt_tokens,
            )

    def follows(self, request: Request) -> bool:
        """Whether a request is in the plans."""
        return self.ledger.follows(request.request_id)

    def extended(self, request: Request) -> None:
        """A running session received more input."""
        self.ledger.extended(request.request_id)

    def rejected(self) -> Collection[tuple[str, InvalidSlo]]:
        """Requests with malformed SLO tags that have not ended yet."""
        return tuple(self._rejected.items())

    def delivered(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Tokens leave the engine."""
        if self._first_parts:
            self._find_second_parts(outputs)
        if self._planner.tuned is None:
            return
        now_s = self.clock()
        for batch in outputs.values():
            for output in batch.outputs:
                self._planner.tuned.deliver(output.request_id, len(output.new_token_ids), now_s)

    def _find_second_parts(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Find the answers that go on as streams from their next token on (`Slo.then_token`)."""
        for batch in outputs.values():
            for output in batch.outputs:
                request_id, new_tokens = output.request_id, output.new_token_ids
                request, token = self._first_parts.get(request_id, (None, None))
                if request is None or not new_tokens or token not in (None, *new_tokens):
                    continue
                place = 0 if token is None else new_tokens.index(token)
                num_after = len(new_tokens) - place - 1
                del self._first_parts[request_id]
                generated = request.num_output_tokens - num_after
                self.ledger.begin_second_part(request_id, generated=generated)
                self._planner.plan_due = True

    def lost_cache(self, request: Request) -> None:
        """A request loses its KV cache and will have to recompute it."""
        num_blocks = -(-request.num_computed_tokens // self._block_tokens)
        self.tracker.lost(num_blocks, self._block_tokens)

    def ending(self, request_id: str) -> None:
        """The scheduler itself is about to end this request, as dropped or rejected."""
        self._ending = request_id

    def part_ended(self, request: Request) -> None:
        """A session's answer so far is complete; it waits for more input."""
        self._forget(request, is_complete=True, is_answer=False)

    def ended(self, request: Request) -> None:
        """A request ends, for whatever reason."""
        is_complete = request.status in _COMPLETE or self._may_have_met_a_stop(request)
        self._forget(request, is_complete=is_complete, is_answer=True)

    def _may_have_met_a_stop(self, request: Request) -> bool:
        """Whether vLLM's front end may have found one of the request's stop strings.

        It then aborts the request, which the scheduler cannot tell from a caller that cancelled.
        """
        params, is_ended_by_us = request.sampling_params, request.request_id == self._ending
        has_stops = params is not None and bool(params.stop)
        return has_stops and not is_ended_by_us and request.num_output_tokens > 0

    def _forget(self, request: Request, *, is_complete: bool, is_answer: bool) -> None:
        request_id, output_tokens = request.request_id, request.num_output_tokens
        now_s = self.clock()
        self._rejected.pop(request_id, None)
        self.dummies.discard(request_id)
        self._first_parts.pop(request_id, None)
        if self._planner.tuned is not None:
            self._planner.tuned.end(request_id, output_tokens, now_s, whole=is_complete)
        due_s = self.ledger.last_due_s(request_id, output_tokens)
        self.tracker.ended(self.ledger.slo(request_id).kind, is_complete and now_s <= due_s)
        self.ledger.forget(request_id, is_complete=is_complete, is_answer=is_answer)
