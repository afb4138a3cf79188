"""The routers: pure functions from a request and snapshots of the replicas to a Route.

Every router returns at least one of the given replicas, and none twice. The order of the snapshots
does not matter: ties end in the load of the replicas, ties of the load in their ids. The calls of
one program are routed separately; only `power_of_k`'s affinity for cached prefixes draws them to
the same replica, and its `stay` keeps them there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from serving.errors import InvalidEngineConfig
from serving.router.prediction import admits, predicted_end_s, priority_on
from serving.router.snapshot import ReplicaSnapshot, RoutedRequest, demands
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

NEAR_SHARE = 0.05
"""Priorities or predicted ends that differ by at most this share are a tie.

Measured speeds of equal replicas differ by a few percent. Where the pace of an answer alone
determines its predicted end, all requests would else go to the replica that looks a little faster.
"""


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
    return Route((min(snapshots, key=lambda each: (load(each), *_load(each))).replica,))


def power_of_k(
    request: RoutedRequest,
    snapshots: Sequence[ReplicaSnapshot],
    *,
    k: int = 2,
    late: bool = True,
    affinity: float = 1.0,
    stay: bool = False,
    seed: int = 0,
) -> Route:
    """K replicas drawn at random, ordered by the request's priority on each, near ties by load.

    Late binding is the published form: a copy waits in each of the K queues, and the replica with
    the first scheduler to run it keeps it. Early binding chooses the best of them at once.

    Args:
        k: number of replicas that are drawn; 0: all.
        late: late binding; if false, early binding.
        affinity: in [0, 1], the weight of a token that is expected in the prefix cache as already
            computed. The published form has no such term; it only names data locality as a reason
            for different priorities.
        stay: a request goes to the replica that caches most of its prefix, also if it is not drawn,
            as long as its SLO can be met there. Without an SLO it goes there unless its predicted
            end elsewhere is earlier. Not in the published form.
        seed: of the draw, which depends only on it and on the ids of request and replicas.
    Raises:
        InvalidEngineConfig: a value out of range.
    Source: Wu (2025), section 4.3 (supporting multiple models).
    """
    if k < 0 or not 0.0 <= affinity <= 1.0:
        reason = "k must be at least 0, and affinity from 0 to 1"
        raise InvalidEngineConfig("router", f"power_of_k(k={k}, affinity={affinity})", reason)
    drawn = _drawn(request, snapshots, k or len(snapshots), seed)
    ranked = _ranked(request, drawn, affinity=affinity)
    if stay and (holder := _holder(request, snapshots, ranked[0], affinity=affinity)) is not None:
        ranked = [holder, *(each for each in ranked if each is not holder)]
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


def _ranked(
    request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot], *, affinity: float
) -> list[ReplicaSnapshot]:
    """The replicas by priority, then by the predicted end; those near the best one by load."""

    def priority(each: ReplicaSnapshot) -> float:
        return priority_on(request, each, affinity=affinity)

    def end_s(each: ReplicaSnapshot) -> float:
        return predicted_end_s(request, each, affinity=affinity)

    highest, earliest_s = max(map(priority, snapshots)), min(map(end_s, snapshots))

    def preference(each: ReplicaSnapshot) -> tuple[bool, float, float, float, int, str]:
        if highest > 0:
            is_near = priority(each) >= (1.0 - NEAR_SHARE) * highest
        else:
            is_near = end_s(each) <= (1.0 + NEAR_SHARE) * earliest_s
        rank = (0.0, 0.0) if is_near else (-priority(each), end_s(each))
        work_s, num_requests, replica = _load(each)
        work_s += _own_work_s(request, each, affinity=affinity)
        return (not is_near, *rank, work_s, num_requests, replica)

    return sorted(snapshots, key=preference)


def _own_work_s(request: RoutedRequest, snapshot: ReplicaSnapshot, *, affinity: float) -> float:
    """Machine seconds that the request would add to the replica."""
    cached = affinity * snapshot.cached_tokens(request)
    return sum(each.work_s for each in demands(request, snapshot.speed, cached_tokens=cached))


def _holder(
    request: RoutedRequest,
    snapshots: Sequence[ReplicaSnapshot],
    best: ReplicaSnapshot,
    *,
    affinity: float,
) -> ReplicaSnapshot | None:
    """The replica that the request's program stays on; None if it need not, or cannot.

    Args:
        best: the replica that is best otherwise.
    """
    holder = min(snapshots, key=lambda each: (-each.cached_tokens(request), *_load(each)))
    if not holder.cached_tokens(request):
        return None
    if request.slo.kind is not SloKind.BEST_EFFORT:
        stays = priority_on(request, holder, affinity=affinity) > 0
    else:
        there_s = predicted_end_s(request, holder, affinity=affinity)
        stays = there_s <= predicted_end_s(request, best, affinity=affinity)
    return holder if stays else None


def _load(snapshot: ReplicaSnapshot) -> tuple[float, int, str]:
    """The order of replicas between which nothing else decides."""
    return (snapshot.work_s, snapshot.num_requests, snapshot.replica)
