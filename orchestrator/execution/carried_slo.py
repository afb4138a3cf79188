"""The SLO that an HTTP request made by someone else's client carries to our server.

A request that executes a recorded call, as those of LangChain's models in an attached graph do,
carries the SLO of that call. Any other request in a run carries that of a call which would begin
where it is sent; it is not recorded, and takes no part in the run's graph.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from orchestrator.errors import RunEnded
from orchestrator.execution.context import CallContext, current_context_or_none
from orchestrator.learning.stage_deadlines import RunTimes, call_slo, slo_after
from serving.slo import Slo

POLL_S = 1.0
"""Seconds after which a request that waits for its call to be recorded looks for the run's end."""


@dataclass(frozen=True, slots=True)
class CarriedSlo:
    """An SLO, when it was made, and the context whose deadline ends the request.

    Attributes:
        at_s: on the run's clock.
    """

    slo: Slo
    context: CallContext
    at_s: float

    @classmethod
    def of_now(cls, context: CallContext) -> CarriedSlo:
        """That of a call which would begin here and now."""
        return cls(slo_of_now(context), context, context.run.clock.now_s())

    @property
    def has_deadline(self) -> bool:
        """Whether the request has to end at a deadline."""
        return not math.isinf(self.context.deadline_at_s)

    def now(self) -> Slo:
        """The SLO with the seconds that are left now."""
        return slo_after(self.slo, self.context.run.clock.now_s() - self.at_s)


def slo_of_now(context: CallContext) -> Slo:
    """The SLO of a call that would begin here and now; nothing is begun or fixed by it."""
    run, now_s = context.run, context.run.clock.now_s()
    stage = run.causality.stage_here()
    return call_slo(
        run_id=run.id,
        run=RunTimes(run.started_s, run.deadline_at_s),
        stage=stage,
        stage_calls=context.stage_calls,
        stage_deadline=run.stage_deadlines.preview(stage, now_s, summary_of=run.stage_so_far),
        limit_at_s=context.deadline_at_s,
        now_s=now_s,
        num_programs=context.num_programs,
        user=run.user,
    )


class SloHandover:
    """Hands the SLO of a recorded call to the HTTP requests that execute it, in any thread.

    Args:
        loop: the run's event loop, on which the call is recorded.
        has_ended: whether nothing is recorded any more.
        what: names the call in errors.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, has_ended: Callable[[], bool], what: str
    ) -> None:
        self._loop = loop
        self._has_ended = has_ended
        self._what = what
        self._given: concurrent.futures.Future[CarriedSlo | None] = concurrent.futures.Future()
        self._context: CallContext | None = None
        self._is_over: Callable[[], bool] = lambda: False

    def begin(self, context: CallContext, is_over: Callable[[], bool]) -> None:
        """The call has this context, and is over once `is_over` says so."""
        self._context, self._is_over = context, is_over

    def give(self, slo: Slo) -> None:
        """The call is recorded, with this SLO."""
        assert self._context is not None, "begin() came before"
        now_s = self._context.run.clock.now_s()
        self._given.set_result(CarriedSlo(slo, self._context, now_s))

    def recorded(self, recording: asyncio.Task[object]) -> None:
        """The task that records the call has ended, perhaps before it came to `give`."""
        if self._given.done():
            return
        if recording.cancelled():
            self._given.set_exception(asyncio.CancelledError())
        elif (error := recording.exception()) is not None:
            self._given.set_exception(error)
        else:  # a recorded answer was found, as in a resumed flow
            self._given.set_result(None)

    @property
    def is_over(self) -> bool:
        """Whether the call has ended: later requests are no part of it."""
        return self._is_over()

    async def wait(self) -> CarriedSlo:
        """The SLO of the call, once it is recorded.

        Raises:
            RunEnded: the run has ended.
            And what kept the call from being recorded.
        """
        given = asyncio.wrap_future(self._given)
        # Retrieved, so that asyncio does not log the error if this task is cancelled meanwhile.
        given.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not (await asyncio.wait([given], timeout=POLL_S))[0]:
            self._require_open()
        return given.result() or self._of_now()

    def wait_in_thread(self) -> CarriedSlo:
        """As `wait`; on the run's own thread, which records the call later, that of now."""
        if _is_running(self._loop):
            return self._of_now()
        while not concurrent.futures.wait([self._given], timeout=POLL_S).done:
            self._require_open()
        return self._given.result() or self._of_now()

    def _of_now(self) -> CarriedSlo:
        assert self._context is not None, "begin() came before"
        return CarriedSlo.of_now(self._context)

    def _require_open(self) -> None:
        if self._has_ended():
            raise RunEnded(self._what)


_handover: ContextVar[SloHandover | None] = ContextVar("orchestrate_slo_handover", default=None)


def set_handover(handover: SloHandover) -> None:
    """The requests that the code here sends execute this recorded call, until it is over."""
    _handover.set(handover)


def current_handover() -> SloHandover | None:
    """The recorded call that the code here executes; None if it executes none."""
    handover = _handover.get()
    return None if handover is None or handover.is_over else handover


async def carried_slo() -> CarriedSlo | None:
    """What a request sent here and now carries; None outside a run."""
    if (handover := current_handover()) is not None:
        return await handover.wait()
    context = current_context_or_none()
    return None if context is None else CarriedSlo.of_now(context)


def carried_slo_in_thread() -> CarriedSlo | None:
    """As `carried_slo`, for code that is not async."""
    if (handover := current_handover()) is not None:
        return handover.wait_in_thread()
    context = current_context_or_none()
    return None if context is None else CarriedSlo.of_now(context)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
