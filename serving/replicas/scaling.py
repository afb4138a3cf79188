"""How many replicas a load needs, by the slack of its deadlines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serving.router.snapshot import HORIZONS_S, ReplicaSnapshot

BEST_EFFORT_S = 64.0
"""Seconds within which work without a due time should be done."""

HIGH_PRESSURE, LOW_PRESSURE = 0.8, 0.5
"""Replicas are added above the first, and removed if the others then stay below the second."""


def pressure(snapshot: ReplicaSnapshot) -> float:
    """The share of its time that a replica needs to be in time with all its requests; at least 0.

    The largest ratio of the work that is due within a horizon to that horizon. What is left to 1 is
    the slack of its deadlines: above 1 some request will be late.
    """
    by_due = (work_s / s for work_s, s in zip(snapshot.due_work_s, HORIZONS_S, strict=True))
    return max(*by_due, snapshot.work_s / BEST_EFFORT_S)


def wanted_replicas(pressures: Sequence[float], current: int) -> int:
    """The number of replicas that the load needs; at least 1.

    Args:
        pressures: of the replicas that answer, averaged over a time.
        current: the number of replicas, those that still load included.
    """
    total = sum(pressures)
    needed = math.ceil(total / HIGH_PRESSURE)
    enough = math.ceil(total / LOW_PRESSURE)
    return max(needed if needed > current else min(enough, current), 1)
