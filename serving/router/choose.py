"""The routers: a request and snapshots of the replicas in, where it goes out. Pure.

Every router names at least one replica, none twice, and only such as it was shown. The order in
which the snapshots are listed does not matter: ties end in the replica's id. The calls of one
program are requests like any others and may go to different replicas; what draws them together is
`power_of_k`'s affinity, where replicas cache prefixes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from serving.errors import InvalidEngineConfig
from serving.router.outlook import admits, predicted_end_s, priority_on
from serving.router.snapshot import ReplicaSnapshot, RoutedRequest
from serving.slo import Slo, SloKind


class Route(NamedTuple):
    """Where a request goes.

    Attributes:
        replicas: best first. With several, a copy waits in each one's queue; the first whose
            scheduler runs it has it, and the other copies are withdrawn.
        best_effort: no replica can keep its promise; it is served from what others leave.
    """

    replicas: tuple[str, ...]
    best_effort: bool = False


Router = Callable[[RoutedRequest, Sequence[ReplicaSnapshot]], Route]


def round_robin(request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
    """One after another, whatever their load."""
    return Route((_rotated(request, snapshots)[0].replica,))


def least_loaded(
    request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot], *, by: str = "work"
) -> Route:
    """The replica with the least to do.

    Args:
        by: "work": predicted machine seconds of all it has; "requests": their number, which asks
            for no prediction.
    Raises:
        InvalidEngineConfig: another `by`.
    """
    if by not in _LOADS:
        raise InvalidEngineConfig("router", f"least_loaded(by={by!r})", f"one of {set(_LOADS)}")
    load = _LOADS[by]
    return Route((min(snapshots, key=lambda each: (load(each), each.replica)).replica,))


def power_of_k(
    request: RoutedRequest,
    snapshots: Sequence[ReplicaSnapshot],
    *,
    k: int = 2,
    late: bool = True,
    affinity: float = 1.0,
    seed: int = 0,
) -> Route:
    """K replicas drawn at random, ordered by the priority that the request has on each.

    Late binding is the published form: a dummy waits in each of the K queues, and the replica whose
    scheduler runs it first has it. Early binding takes the first in the order at once.

    Args:
        k: how many are drawn; 0: all.
        late: whether all K are named, or only the best.
        affinity: in [0, 1], how much a token that is believed cached counts as read. The published
            form has no such term beyond naming data locality as a reason for priorities to differ.
        seed: of the draw, which depends on it and on the ids alone.
    Raises:
        InvalidEngineConfig: a value out of range.
    Source: Wu (2025), section 4.3 (supporting multiple models).
    """
    if k < 0 or not 0.0 <= affinity <= 1.0:
        told = "k must be at least 0, and affinity within 0 and 1"
        raise InvalidEngineConfig("router", f"power_of_k(k={k}, affinity={affinity})", told)
    drawn = _drawn(request, snapshots, k or len(snapshots), seed)
    ranked = sorted(
        drawn, key=lambda each: (*_preference(request, each, affinity=affinity), each.replica)
    )
    return Route(tuple(each.replica for each in (ranked if late else ranked[:1])))


def slos_serve(
    request: RoutedRequest,
    snapshots: Sequence[ReplicaSnapshot],
    *,
    limit: int = 0,
    share: float = 1.0,
) -> Route:
    """The first replica that can keep the promise, tried in turn from the round-robin's choice on.

    Whom `limit` replicas decline is served as best effort on the first. The paper asks each
    replica's own scheduler; here `admits` answers for it from the snapshot.

    Args:
        limit: how many replicas are tried; 0: all.
        share: of a replica's time, what may be promised; above 0.
    Raises:
        InvalidEngineConfig: a value out of range.
    Source: Chen et al. (2025), SLOs-Serve, sections 4.1, 4.2 and 6.2 (round-robin dispatch first).
    """
    if limit < 0 or not (math.isfinite(share) and share > 0):
        told = "limit must be at least 0, and share a finite number above 0"
        raise InvalidEngineConfig("router", f"slos_serve(limit={limit}, share={share})", told)
    order = _rotated(request, snapshots)
    first = order[0].replica
    if request.slo.kind is SloKind.BEST_EFFORT:
        return Route((first,))
    for snapshot in order[: limit or len(order)]:
        if admits(request, snapshot, share=share):
            return Route((snapshot.replica,))
    return Route((first,), best_effort=True)


def as_best_effort(slo: Slo) -> Slo:
    """The same request without its promise: its length, user and weight stay."""
    return Slo(length=slo.length, user=slo.user, weight=slo.weight)


_LOADS: Mapping[str, Callable[[ReplicaSnapshot], float]] = {
    "work": lambda snapshot: snapshot.work_s,
    "requests": lambda snapshot: snapshot.num_requests,
}


def _rotated(request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> list[ReplicaSnapshot]:
    """All replicas by id, from the one on whose turn it is."""
    ordered = sorted(snapshots, key=lambda each: each.replica)
    turn = request.number % len(ordered)
    return ordered[turn:] + ordered[:turn]


def _drawn(
    request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot], count: int, seed: int
) -> list[ReplicaSnapshot]:
    """So many different replicas, each set as likely as any other."""
    if count >= len(snapshots):
        return list(snapshots)
    scored = sorted((_score(request, each, seed), each.replica, each) for each in snapshots)
    return [each for _, _, each in scored[:count]]


def _score(request: RoutedRequest, snapshot: ReplicaSnapshot, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{request.request_id}:{snapshot.replica}".encode()).digest()


def _preference(
    request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float
) -> tuple[float, float]:
    """Smaller is better: where no promise can be kept, the earliest end is."""
    return (
        -priority_on(request, snapshot, affinity=affinity),
        predicted_end_s(request, snapshot, affinity=affinity),
    )
