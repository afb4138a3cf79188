"""Limits on the requests of each key: how many begin in a minute, and how many run at once."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable

from serving.engine.server.api_keys import ApiKey

MINUTE_S = 60.0

BUSY_S = 1
"""Seconds after which a client should try again if too many of its requests run."""


class RateLimits:
    """Counts the requests of each key.

    Args:
        now_s: the present time in seconds, from any origin; it never goes back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._begun: defaultdict[bytes, deque[float]] = defaultdict(deque)
        self._running: defaultdict[bytes, int] = defaultdict(int)

    def begin(self, key: ApiKey) -> int | None:
        """Count a request that begins, which `end` must follow.

        Returns: None; or, if a limit forbids it, whole seconds after which to try again.
        """
        if key.concurrency is not None and self._running[key.digest] >= key.concurrency:
            return BUSY_S
        if key.requests_per_minute is not None:
            now_s, begun = self._now_s(), self._begun[key.digest]
            while begun and now_s - begun[0] >= MINUTE_S:
                begun.popleft()
            if len(begun) >= key.requests_per_minute:
                return max(1, math.ceil(begun[0] + MINUTE_S - now_s))
            begun.append(now_s)
        self._running[key.digest] += 1
        return None

    def end(self, key: ApiKey) -> None:
        """Count a request that has ended."""
        self._running[key.digest] -= 1
