"""The seconds of a promise that are left after a time in the gateway.

The seconds of SLO tags count from the arrival at the engine, but the client promised nothing to the
gateway: what it spends is subtracted from every tag that counts seconds from the arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.router.choose import as_best_effort
from serving.slo import TAG_PREFIX, OnLate, Slo, SloKind, to_tags

PROMISES = ("slo_deadline_s", "slo_final_s", "slo_ttft_s", "slo_waiting_s")
"""The tags that count seconds from the arrival; `slo_tbt_s` counts from token to token."""

LEAST_S = 0.001
"""What is left of a promise whose time has passed. The engine takes only values above 0, and by
`slo_on_late` it decides what becomes of a late request; none answers within a millisecond."""


def remaining(tags: Mapping[str, Any], slo: Slo, *, spent_s: float) -> dict[str, Any]:
    """The tags after some seconds; those of other kinds of values are unchanged.

    The default promises of a latency request are promises too, so they are written down.

    Args:
        slo: what the tags mean.
        spent_s: seconds since the arrival at the gateway.
    """
    promised = dict(tags)
    if slo.kind is SloKind.LATENCY:
        promised |= {"slo_ttft_s": slo.ttft_s, "slo_waiting_s": slo.waiting_s}
    for name in PROMISES:
        if name in promised:
            promised[name] = max(promised[name] - spent_s, LEAST_S)
    return promised


def demoted(tags: Mapping[str, Any], slo: Slo) -> dict[str, Any]:
    """The tags of a request that no replica can serve in time, as best effort.

    One that its client wants dropped when it is late keeps its promise: the engine drops it.
    """
    if slo.on_late is OnLate.DROP:
        return dict(tags)
    others = {key: value for key, value in tags.items() if not key.startswith(TAG_PREFIX)}
    return others | to_tags(as_best_effort(slo))
