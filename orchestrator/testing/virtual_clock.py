"""A clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class VirtualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_s = 0.0

    def now_s(self) -> float:
        """Seconds by which the clock has been advanced."""
        return self._elapsed_s

    def wall(self) -> datetime:
        """The start time plus the seconds by which the clock has been advanced."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        assert seconds >= 0, "time does not run backwards"
        self._elapsed_s += seconds
