"""An event loop whose idle moments belong to a simulation: time is virtual, and nothing is random.

When no task can run, the loop asks the simulation what happens next, such as which commit lands.
Only if the simulation has nothing to decide, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

R = TypeVar("R")

_THREAD_POLL_S = 0.001
_MAX_THREAD_WAIT_S = 5.0
"""Real seconds that a plain function may take in its thread before the simulation goes on."""


class _IdleSelector(selectors.DefaultSelector):
    """Instead of waiting, asks `when_idle` for something to do; else adds to the virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0
        self.when_idle: Callable[[float | None], bool] = lambda _: False
        self._own_threads = set(threading.enumerate())

    def select(self, timeout: float | None = None) -> Any:
        """The ready events; a call with a timeout other than 0 means that no task can run."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if ready := self._ended_threads():
            return ready
        if self.when_idle(timeout):
            return []
        if timeout is None:  # only a thread that the simulation does not know could end this wait
            return super().select(_THREAD_POLL_S)
        self.waited_s += timeout
        return []

    def _ended_threads(self) -> Any:
        """Wait for the threads of users' plain functions: what they do is not to depend on time."""
        give_up_s = time.monotonic() + _MAX_THREAD_WAIT_S
        while any(t.is_alive() for t in {*threading.enumerate()} - self._own_threads):
            if (ready := super().select(_THREAD_POLL_S)) or time.monotonic() > give_up_s:
                return ready
        return super().select(0)  # one may have ended just now


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. Work for its thread pool is done at once, in the loop."""

    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._idle.waited_s

    def ask_when_idle(self, when_idle: Callable[[float | None], bool]) -> None:
        """Call `when_idle` whenever no task can run.

        Args:
            when_idle: takes the seconds until the next timer, None without one; returns whether
                it gave some task something to do. If not, time jumps to that timer.
        """
        self._idle.when_idle = when_idle

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        """Do the work now: in a pool's thread it would end at a random moment."""
        done: asyncio.Future[R] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class LoopClock:
    """A simulated loop's time as the runtime's clock; so long ago that every lease has expired."""

    def now_s(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        """The same, from a fixed moment on."""
        return datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s())
