"""Predictions for a request on a replica, from its snapshot: its end, priority and admission."""

from __future__ import annotations

from serving.router.snapshot import (
    HORIZONS_S,
    ReplicaSnapshot,
    RoutedRequest,
    Speed,
    demands,
    final_kv_blocks,
)
from serving.slo import SloKind

LATE_S, BEST_EFFORT_S = 2.0, 64.0
"""Seconds within which late work should be done, and work that has no due time."""


def priority_on(
    request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float = 1.0
) -> float:
    """Margin goodput / seconds until the request would end on this replica; at least 0.

    The published priority, with the wait due to the replica's load; 0 if the SLO cannot be met. The
    goodput of a latency stream is its output, if its first token and its TBT can be in time; that
    of the other kinds is prompt and output, if the end can be in time.
    Source: Wu (2025), equation 4.1 and section 4.3.
    """
    slo, speed = request.slo, snapshot.speed
    output = request.output_tokens()
    end_s = predicted_end_s(request, snapshot, affinity=affinity)
    if slo.kind is SloKind.BEST_EFFORT:
        return slo.weight * output / end_s
    if slo.kind is SloKind.LATENCY:
        first_s = end_s - (output - 1) * speed.token_s
        in_time = first_s <= slo.ttft_s and speed.token_s <= slo.tbt_s
        return slo.weight * output / end_s if in_time else 0.0
    assert slo.deadline_s is not None, "this kind has a deadline"
    return slo.weight * (request.prompt_tokens + output) / end_s if end_s <= slo.deadline_s else 0.0


def predicted_end_s(
    request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float = 1.0
) -> float:
    """Seconds until the request would end: after the work due before it, at its decode speed."""
    speed = snapshot.speed
    cached = affinity * snapshot.cached_tokens(request)
    first, *rest = demands(request, speed, cached_tokens=cached)
    prefill_s = (request.prompt_tokens - cached) * speed.prefill_token_s
    decode_s = max(request.output_tokens() - 1, 0.0) * speed.token_s
    if rest:  # a stream: only the work due before its first token precedes it
        return snapshot.work_before_s(first.due_s) + prefill_s + speed.token_s + decode_s
    queued_s = snapshot.work_before_s(first.due_s) + first.work_s
    return max(queued_s, prefill_s + speed.token_s + decode_s)


def admits(request: RoutedRequest, snapshot: ReplicaSnapshot, *, share: float = 1.0) -> bool:
    """Whether the request and the replica's open requests can be in time together.

    The whole context must fit the KV cache beside those of the open requests, the request must be
    fast enough without a queue, and by every horizon the work due by then must fit into `share` of
    the time until then.
    """
    kv_blocks = final_kv_blocks(request, snapshot.block_tokens) + snapshot.final_kv_blocks
    if kv_blocks > snapshot.kv_blocks or not _fast_enough(request, snapshot.speed):
        return False
    due = list(snapshot.due_work_s)
    first, own_s = len(HORIZONS_S), 0.0
    for demand in demands(request, snapshot.speed):
        own_s += demand.work_s
        if snapshot.work_before_s(demand.due_s) + own_s > share * demand.due_s:
            return False
        for index, horizon_s in enumerate(HORIZONS_S):
            if horizon_s >= demand.due_s:
                due[index] += demand.work_s
                first = min(first, index)
    return all(due[index] <= share * HORIZONS_S[index] for index in range(first, len(HORIZONS_S)))


def pressure(snapshot: ReplicaSnapshot) -> float:
    """The share of its time that a replica needs to be in time with all its requests; at least 0.

    The largest ratio of the work that is due within a horizon to that horizon. What is left to 1 is
    the slack of the deadlines: above 1 some request will be late. Late work is due within LATE_S.
    """
    due = zip(snapshot.due_work_s, HORIZONS_S, strict=True)
    late_s = snapshot.late_work_s
    ratios = [(work_s + (late_s if s >= LATE_S else 0.0)) / s for work_s, s in due]
    return max(*ratios, snapshot.work_s / BEST_EFFORT_S)


def _fast_enough(request: RoutedRequest, speed: Speed) -> bool:
    """Whether the request would be in time at the replica's present speed if it did not queue."""
    slo = request.slo
    prefill_s = request.prompt_tokens * speed.prefill_token_s
    if slo.kind is SloKind.LATENCY:
        return prefill_s + speed.token_s <= slo.ttft_s and speed.token_s <= slo.tbt_s
    assert slo.deadline_s is not None, "only best effort has no deadline, and is never declined"
    return prefill_s + request.output_tokens() * speed.token_s <= slo.deadline_s
