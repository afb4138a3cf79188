"""From ranks to a plan: the one place where ties are broken and SLO drops are honoured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.policies.fairness import fair_order, limited
from serving.policies.urgency import Stay, drops, next_change_s, stay_of
from serving.requests import Flags, Ints, Requests
from serving.view import Plan, StepView

Key = np.ndarray[tuple[int], np.dtype[np.float64]] | np.ndarray[tuple[int], np.dtype[np.int64]]


def order_by(view: StepView, *keys: Key, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Order requests by the keys, lowest first, the first key first. The first `batch` run.

    Args:
        keys: (n,) each; ties end in (arrival, id).
        batch: how many run at once; 0: as many as the engine has slots.
        fairness: f, 0 to 1; above 0 the order is mixed with Fair(r) within each standing.

    Raises:
        InvalidEngineConfig: a fairness outside of 0 to 1.
    """
    order = sorted_places(view.requests, *keys)
    if fairness:
        order = fair_order(view, order, fairness)
    plan = plan_of(view, order, batch or view.slots)
    return limited(view, plan) if fairness else plan


def sorted_places(requests: Requests, *keys: Key) -> Ints:
    """The places of all requests by the keys, the first key first; ties by arrival, then id."""
    columns = (*keys, requests.arrival_s)
    # Ties end below whatever the sort does with them, so that a single key may have the fastest.
    order: Ints = np.lexsort(columns[::-1]) if keys else np.argsort(requests.arrival_s)
    tied = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        ranked = column[order]
        tied &= ranked[1:] == ranked[:-1]
    for first, last in _runs(tied):
        group = order[first : last + 1]
        names = requests.request_id[group].tolist()
        order[first : last + 1] = group[sorted(range(len(names)), key=names.__getitem__)]
    return order


def plan_of(view: StepView, order: Ints, run: int | Flags, *, stay: Stay | None = None) -> Plan:
    """The plan that ranks requests as given, and ends those whose SLO asks for it.

    It holds until time alone would change some request's standing.

    Args:
        order: places of all requests, best first.
        run: who is computed: the first so many that are not dropped, or those flagged, (n,).
        stay: how long each may stay, from who knows it already.
    """
    requests, stay = view.requests, stay_of(view) if stay is None else stay
    dropped = drops(view, stay)
    gone = np.zeros(len(requests), dtype=bool)
    gone[[place for place, _ in dropped]] = True
    kept = order[~gone[order]]
    chosen = kept[:run] if isinstance(run, int) else kept[run[kept]]
    changes = next_change_s(view, stay)[kept]
    names = requests.request_id
    return Plan(
        order=(*names[kept].tolist(), *(names[place] for place, _ in dropped)),
        run=frozenset(names[chosen].tolist()),
        drop=tuple((names[place], reason) for place, reason in dropped),
        until_s=float(changes.min(initial=np.inf)),
    )


def _runs(tied: Flags) -> Sequence[tuple[int, int]]:
    """First and last place of each run of neighbours that are tied."""
    if not tied.any():
        return ()
    edges = np.diff(np.concatenate([[False], tied, [False]]).astype(np.int8))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
