"""How often a dead engine is started again."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW_S = 600.0
"""Seconds in which starts are counted: an engine that works for longer has recovered."""

PAUSE_S = 2.0
"""Seconds between a failed start and the next one: the memory of the dead engine becomes free."""


def may_restart(limit: int, starts_s: Sequence[float], now_s: float) -> bool:
    """Whether another start is allowed: fewer than `limit` lie in the last WINDOW_S.

    Args:
        starts_s: times of the earlier starts after a death, by the clock of now_s.
    """
    return sum(now_s - each_s < WINDOW_S for each_s in starts_s) < limit
