"""How many replicas a load needs, by the slack of its deadlines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

HIGH_PRESSURE, LOW_PRESSURE = 0.8, 0.5
"""Replicas are added above the first, and removed if the others then stay below the second."""


def wanted_replicas(pressures: Sequence[float], current: int) -> int:
    """The number of replicas that the load needs; at least 1.

    Args:
        pressures: of the replicas that answer (`serving.router.prediction.pressure`), averaged
            over a time.
        current: the number of replicas, those that still load included.
    """
    total = sum(pressures)
    needed = math.ceil(total / HIGH_PRESSURE)
    enough = math.ceil(total / LOW_PRESSURE)
    return max(needed if needed > current else min(enough, current), 1)
