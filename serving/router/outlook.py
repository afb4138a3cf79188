"""How a request would fare on a replica, by its snapshot: its end, its worth, its admission."""

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


def priority_on(
    request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float = 1.0
) -> float:
    """Margin goodput per second until the request would end on this replica; at least 0.

    The published priority, with the wait that the replica's load means for it: 0 where the promise
    cannot be kept any more. A latency stream earns its output if its first token and its pace can
    be in time, the others prompt and output if their end can.
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
    """Seconds until the request would have ended: after what is due before it, at its own pace."""
    speed = snapshot.speed
    cached = affinity * snapshot.cached_tokens(request)
    first, *rest = demands(request, speed, cached_tokens=cached)
    read_s = (request.prompt_tokens - cached) * speed.prefill_token_s
    pace_s = max(request.output_tokens() - 1, 0.0) * speed.token_s
    if rest:  # a stream: what is due before its first token goes before it
        return snapshot.work_before_s(first.due_s) + read_s + speed.token_s + pace_s
    queued_s = snapshot.work_before_s(first.due_s) + first.work_s
    return max(queued_s, read_s + speed.token_s + pace_s)


def admits(request: RoutedRequest, snapshot: ReplicaSnapshot, *, share: float = 1.0) -> bool:
    """Whether the request and all that is promised there can be in time, by the snapshot.

    Its whole context must fit the KV cache beside those of the others, it must be fast enough
    where nobody is before it, and by every horizon the work due by then must fit into `share` of
    the time until then.
    """
    promised = final_kv_blocks(request, snapshot.block_tokens) + snapshot.promised_kv_blocks
    if promised > snapshot.kv_blocks or not _fast_enough(request, snapshot.speed):
        return False
    due = list(snapshot.due_work_s)
    first, own_s = len(HORIZONS_S), 0.0
    for demand in demands(request, snapshot.speed):
        own_s += demand.work_s
        if snapshot.work_before_s(demand.due_s) + own_s > share * demand.due_s:
            return False
        for place, horizon_s in enumerate(HORIZONS_S):
            if horizon_s >= demand.due_s:
                due[place] += demand.work_s
                first = min(first, place)
    return all(due[place] <= share * HORIZONS_S[place] for place in range(first, len(HORIZONS_S)))


def _fast_enough(request: RoutedRequest, speed: Speed) -> bool:
    """Whether it would be in time on this replica as loaded as it is, were it next."""
    slo = request.slo
    read_s = request.prompt_tokens * speed.prefill_token_s
    if slo.kind is SloKind.LATENCY:
        return read_s + speed.token_s <= slo.ttft_s and speed.token_s <= slo.tbt_s
    assert slo.deadline_s is not None, "whoever asks to be admitted has a deadline"
    return read_s + request.output_tokens() * speed.token_s <= slo.deadline_s
