"""From ranks to a plan: the one place where ties are broken and SLO drops are honoured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.policies.fairness import fair_order, limited
from serving.policies.urgency import (
    DeadlineClass,
    StayLimits,
    drops,
    next_change_s,
    stay_limits_of,
    to_drop,
)
from serving.requests import Flags, Floats, Ints, Requests
from serving.view import Plan, StepView

Key = Floats | Ints | Flags


def order_by(
    view: StepView, stands: Ints | None, *keys: Key, batch: int = 0, fairness: float = 0.0
) -> Plan:
    """Order requests by standing, then by the keys, lowest first. The first `batch` run.

    Expired work does not run in memory that feasible work waits for.

    Args:
        stands: of each request, (n,), a Standing; None for an order that is blind to deadlines.
        keys: (n,) each; ties end in (arrival, id).
        batch: how many run at once; 0: as many as the engine has slots.
        fairness: f, 0 to 1; above 0 the order is mixed with Fair(r) within each standing.

    Raises:
        InvalidEngineConfig: a fairness outside of 0 to 1.
    """
    if stands is None:
        order, late = sorted_indices(view.requests, *keys), np.zeros(len(view.requests), dtype=bool)
    else:
        order, late = sorted_indices(view.requests, stands, *keys), stands > DeadlineClass.FEASIBLE
    if fairness:
        order = fair_order(view, order, fairness)
    stay = stay_limits_of(view)
    run = np.zeros(len(order), dtype=bool)
    run[order[~to_drop(view, stay)[order]][: batch or view.slots]] = True
    plan = plan_of(view, order, memory_holders_to_evict(view, order, run, late), stay=stay)
    return limited(view, plan) if fairness else plan


def memory_holders_to_evict(view: StepView, order: Ints, run: Flags, weaker: Flags) -> Flags:
    """Who runs, without those of the weaker whose memory somebody better waits for: (n,).

    The last of the order first, and no more of them than what is wanted beyond the free memory and
    what the prefix cache held. The engine pauses them, and takes the memory if it really is short.
    Nor does any of the weaker begin that comes after one who gives.

    Args:
        order: places of all requests, best first.
        run: who would run, (n,).
        weaker: who gives way to those who are not, (n,).
    """
    requests = view.requests
    waits = run & ~weaker & (requests.computed_tokens == 0)
    holders = order[(run & weaker & (requests.computed_tokens > 0))[order]][::-1]
    unread = requests.prompt_tokens + requests.output_tokens - requests.cached_tokens
    short = np.maximum(unread[waits], 0).sum() - view.free_kv_tokens
    held = requests.computed_tokens[holders]
    run = run.copy()
    giving = np.cumsum(held) - held < short
    if giving.any():
        run[holders[giving]] = False
        behind = order[int(np.flatnonzero(order == holders[giving][-1])[0]) :]
        run[behind[weaker[behind] & (requests.computed_tokens[behind] == 0)]] = False
    return run


def sorted_indices(requests: Requests, *keys: Key) -> Ints:
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
        names = requests.ids(group)
        order[first : last + 1] = group[sorted(range(len(names)), key=names.__getitem__)]
    return order


def plan_of(
    view: StepView, order: Ints, run: int | Flags, *, stay: StayLimits | None = None
) -> Plan:
    """The plan that ranks requests as given, and ends those whose SLO asks for it.

    It holds until time alone would change some request's standing.

    Args:
        order: places of all requests, best first.
        run: who is computed: the first so many that are not dropped, or those flagged, (n,).
        stay: how long each may stay, from who knows it already.
    """
    requests, stay = view.requests, stay_limits_of(view) if stay is None else stay
    dropped = drops(view, stay)
    given_up = np.array([place for place, _ in dropped], dtype=np.int64)
    gone = np.zeros(len(requests), dtype=bool)
    gone[given_up] = True
    kept = order[~gone[order]]
    chosen = kept[:run] if isinstance(run, int) else kept[run[kept]]
    changes = next_change_s(view, stay)[kept]
    ended = requests.ids(given_up)
    return Plan(
        order=(*requests.ids(kept), *ended),
        run=frozenset(requests.ids(chosen)),
        drop=tuple(zip(ended, (reason for _, reason in dropped), strict=True)),
        until_s=float(changes.min(initial=np.inf)),
    )


def _runs(tied: Flags) -> Sequence[tuple[int, int]]:
    """First and last place of each run of neighbours that are tied."""
    if not tied.any():
        return ()
    edges = np.diff(np.concatenate([[False], tied, [False]]).astype(np.int8))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
