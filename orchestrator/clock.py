"""The clock that the runtime is given: wall time for records, monotonic time for deadlines."""

from __future__ import annotations

import time
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
