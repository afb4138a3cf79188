"""The routers: pure functions from a request and snapshots of the replicas to a Route.

Every router returns at least one of the given replicas, and none twice. The order of the snapshots
does not matter: ties are broken by the replica's id. The calls of one program are routed
separately; only `power_of_k`'s affinity for cached prefixes draws them to the same replica.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from serving.errors import InvalidEngineConfig
from serving.router.prediction import admits, predicted_end_s, priority_on
from serving.router.snapshot import ReplicaSnapshot, RoutedRequest
from serving.slo import Slo, SloKind


class Route(NamedTuple):
    """Where a request goes.

    Attributes:
        replicas: best first. With several, a copy waits in each replica's queue; the first
            scheduler that runs it keeps it, and the other copies are withdrawn.
        best_effort: no replica can meet its SLO; it is served as best effort.
    """

    replicas: tuple[str, ...]
    best_effort: bool = False


Router = Callable[[RoutedRequest, Sequence[ReplicaSnapshot]], Route]


def round_robin(request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
    """The replicas in turn, regardless of their load."""
    return Route((_rotated(request, snapshots)[0].replica,))


def least_loaded(
    request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot], *, by: str = "work"
) -> Route:
    """The replica with the smallest load.

    Args:
        by: "work": predicted machine seconds of all open requests; "requests": their number, which
            needs no prediction.
    Raises:
        InvalidEngineConfig: another `by`.
    """
    if by not in _LOADS:
        reason = f"by must be one of {', '.join(_LOADS)}"
        raise InvalidEngineConfig("router", f"least_loaded(by={by!r})", reason)
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
    """K replicas drawn at random, ordered by the request's priority on each.

    Late binding is the published form: a copy waits in each of the K queues, and the replica with
    the first scheduler to run it keeps it. Early binding chooses the best of them at once.

    Args:
        k: number of replicas that are drawn; 0: all.
        late: late binding; if false, early binding.
        affinity: in [0, 1], the weight of a token that is expected in the prefix cache as already
            computed. The published form has no such term; it only names data locality as a reason
            for different priorities.
        seed: of the draw, which depends only on it and on the ids of request and replicas.
    Raises:
        InvalidEngineConfig: a value out of range.
    Source: Wu (2025), section 4.3 (supporting multiple models).
    """
    if k < 0 or not 0.0 <= affinity <= 1.0:
        reason = "k must be at least 0, and affinity from 0 to 1"
        raise InvalidEngineConfig("router", f"power_of_k(k={k}, affinity={affinity})", reason)
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
    """The first replica that can meet the SLO, tried in turn from the round-robin choice on.

    A request that `limit` replicas decline is served as best effort on the first of them. The paper
    asks each replica's own scheduler; here `admits` decides from the snapshot.

    Args:
        limit: number of replicas that are tried; 0: all.
        share: the share of a replica's time that may be allocated to SLOs; above 0.
    Raises:
        InvalidEngineConfig: a value out of range.
    Source: Chen et al. (2025), SLOs-Serve, sections 4.1, 4.2 and 6.2 (round-robin dispatch first).
    """
    if limit < 0 or not (math.isfinite(share) and share > 0):
        reason = "limit must be at least 0, and share a finite number above 0"
        raise InvalidEngineConfig("router", f"slos_serve(limit={limit}, share={share})", reason)
    order = _rotated(request, snapshots)
    first = order[0].replica
    if request.slo.kind is SloKind.BEST_EFFORT:
        return Route((first,))
    for snapshot in order[: limit or len(order)]:
        if admits(request, snapshot, share=share):
            return Route((snapshot.replica,))
    return Route((first,), best_effort=True)


def as_best_effort(slo: Slo) -> Slo:
    """A best-effort SLO with the same length prediction, user and weight."""
    return Slo(length=slo.length, user=slo.user, weight=slo.weight)


_LOADS: Mapping[str, Callable[[ReplicaSnapshot], float]] = {
    "work": lambda snapshot: snapshot.work_s,
    "requests": lambda snapshot: snapshot.num_requests,
}


def _rotated(request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> list[ReplicaSnapshot]:
    """All replicas by id, beginning with the one that is next in turn."""
    ordered = sorted(snapshots, key=lambda each: each.replica)
    turn = request.number % len(ordered)
    return ordered[turn:] + ordered[:turn]


def _drawn(
    request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot], count: int, seed: int
) -> list[ReplicaSnapshot]:
    """`count` different replicas; every set is equally likely."""
    if count >= len(snapshots):
        return list(snapshots)
    scored = sorted((_score(request, each, seed), each.replica, each) for each in snapshots)
    return [each for _, _, each in scored[:count]]


def _score(request: RoutedRequest, snapshot: ReplicaSnapshot, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{request.request_id}:{snapshot.replica}".encode()).digest()


def _preference(
    request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float
) -> tuple[float, float]:
    """The sort key of a replica, smallest first: by priority, then by the predicted end."""
    return (
        -priority_on(request, snapshot, affinity=affinity),
        predicted_end_s(request, snapshot, affinity=affinity),
    )
