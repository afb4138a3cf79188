"""Time, passed in rather than read: wall time is recorded, monotonic time is scheduled by."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the runtime reads time."""

    def now_s(self) -> float:
        """Monotonic seconds since some fixed moment."""
        ...

    def wall(self) -> datetime:
        """Wall time, aware, UTC."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Monotonic seconds, on asyncio's own scale."""
        return time.monotonic()

    def wall(self) -> datetime:
        """Wall time, aware, UTC."""
        return datetime.now(UTC)
