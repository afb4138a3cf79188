"""vLLM's requests -> the view that policies read. Owns the scheduler's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from serving.errors import InvalidSlo
from serving.slo import BEST_EFFORT, Slo, from_tags
from serving.view import RequestState, RequestView, StepView

if TYPE_CHECKING:
    from vllm.v1.request import Request

Clock = Callable[[], float]


class Ledger:
    """What the scheduler knows of each request beside vLLM's own state.

    Arrivals are stamped here, on one clock, so that no two machines compare theirs.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._slo: dict[str, Slo] = {}
        self._arrival_s: dict[str, float] = {}
        self._unscheduled_s: dict[str, float] = {}

    def admit(self, request: Request) -> InvalidSlo | None:
        """Start to follow a request. Malformed tags are returned, never raised, in the engine."""
        now_s = self.clock()
        self._arrival_s[request.request_id] = now_s
        self._unscheduled_s[request.request_id] = now_s
        params = request.sampling_params
        try:
            slo = from_tags(params.extra_args if params is not None else None)
        except InvalidSlo as error:
            self._slo[request.request_id] = BEST_EFFORT
            return error
        self._slo[request.request_id] = slo
        return None

    def computed(self, request_ids: Iterable[str]) -> None:
        """Note that these requests were part of a step just now."""
        now_s = self.clock()
        for request_id in request_ids:
            self._unscheduled_s[request_id] = now_s

    def forget(self, request_ids: Iterable[str]) -> None:
        """Stop following requests that ended."""
        for request_id in request_ids:
            for known in (self._slo, self._arrival_s, self._unscheduled_s):
                known.pop(request_id, None)

    def slo(self, request_id: str) -> Slo:
        """The promise made to a request that is being followed."""
        return self._slo[request_id]

    def view(
        self,
        *,
        running: Iterable[Request],
        waiting: Iterable[Request],
        paused: Collection[str],
        slots: int,
        step_tokens: int,
        token_s: float,
        prefill_token_s: float,
    ) -> StepView:
        """The view of this moment; `paused` names those of `running` that hold still."""
        requests = [
            self._request(
                request,
                RequestState.PAUSED if request.request_id in paused else RequestState.RUNNING,
            )
            for request in running
        ]
        requests += [self._request(request, RequestState.WAITING) for request in waiting]
        return StepView(
            now_s=self.clock(),
            requests=tuple(requests),
            slots=slots,
            step_tokens=step_tokens,
            token_s=token_s,
            prefill_token_s=prefill_token_s,
        )

    def _request(self, request: Request, state: RequestState) -> RequestView:
        request_id = request.request_id
        return RequestView(
            request_id=request_id,
            arrival_s=self._arrival_s[request_id],
            slo=self._slo[request_id],
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            state=state,
            computed_tokens=request.num_computed_tokens,
            output_tokens=request.num_output_tokens,
            unscheduled_s=self._unscheduled_s[request_id],
        )
