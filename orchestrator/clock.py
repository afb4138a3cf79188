"""The clock that the runtime is given: wall time for records, monotonic time for deadlines.

Each run has a clock of its own, which stops while a person is asked who has all the time needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The runtime's source of time."""

    def now_s(self) -> float:
        """Monotonic seconds since an arbitrary moment."""
        ...

    def wall(self) -> datetime:
        """Wall time, aware, UTC."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Monotonic seconds, on the same scale as asyncio's event loop."""
        return time.monotonic()

    def wall(self) -> datetime:
        """Wall time, aware, UTC."""
        return datetime.now(UTC)


class RunClock:
    """The clock of one run; it can be stopped.

    Args:
        stopped_s: how long it was stopped before.
    """

    def __init__(self, clock: Clock, *, stopped_s: float = 0.0) -> None:
        self._clock = clock
        self._stopped_s = stopped_s
        self._since_s = 0.0  # when it stopped
        self._num_stops = 0

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped now."""
        return self._num_stops > 0

    @property
    def stopped_s(self) -> float:
        """How long it has been stopped, in total."""
        return self._stopped_s + (self._clock.now_s() - self._since_s if self.is_stopped else 0.0)

    def now_s(self) -> float:
        """Monotonic seconds, without the time for which it was stopped."""
        if self.is_stopped:  # reading the clock here and for stopped_s would give two times
            return self._since_s - self._stopped_s
        return self._clock.now_s() - self._stopped_s

    def wall(self) -> datetime:
        """Wall time, aware, UTC; it never stops."""
        return self._clock.wall()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it until the block ends; of several blocks at the same time, the last one."""
        if not self._num_stops:
            self._since_s = self._clock.now_s()
        self._num_stops += 1
        try:
            yield
        finally:
            stopped_s = self.stopped_s
            self._num_stops -= 1
            if not self._num_stops:
                self._stopped_s = stopped_s
