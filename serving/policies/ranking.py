"""From ranks to a plan: breaks ties and applies the drops that SLOs ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.policies.fairness import fair_order, limit_users_ahead
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
    view: StepView, classes: Ints | None, *keys: Key, batch: int = 0, fairness: float = 0.0
) -> Plan:
    """Order requests by deadline class, then by the keys, lowest first. The first `batch` run.

    Late requests do not run while feasible prompts need their KV memory.

    Args:
        classes: the DeadlineClass of each request, (n,); None for an order without deadlines.
        keys: (n,) each; ties are broken by arrival, then id.
        batch: number of requests that run at once; 0: the engine's slots.
        fairness: f, 0 to 1; above 0 the order is mixed with Fair(r) within each deadline class.

    Raises:
        InvalidEngineConfig: a fairness outside 0 to 1.
    """
    requests = view.requests
    if classes is None:
        order, late = sorted_indices(requests, *keys), np.zeros(len(requests), dtype=bool)
    else:
        order, late = sorted_indices(requests, classes, *keys), classes > DeadlineClass.FEASIBLE
    if fairness:
        order = fair_order(view, order, fairness)
    stay = stay_limits_of(view)
    run = np.zeros(len(order), dtype=bool)
    run[order[~to_drop(view, stay)[order]][: batch or view.slots]] = True
    run = without_weaker_memory_holders(view, order, run, late)
    plan = plan_of(view, order, run, stay=stay)
    return limit_users_ahead(view, plan) if fairness else plan


def without_weaker_memory_holders(view: StepView, order: Ints, run: Flags, weaker: Flags) -> Flags:
    """The flags in `run` without weaker requests that hold KV memory for better prompts: (n,).

    The missing memory is that of the better prompts that begin, less their cached tokens and the
    free memory. Weaker holders of at least that much are taken out, the last in the order first;
    the engine pauses them, and evicts them only if memory really runs out. Weaker requests behind
    the best of these in the order do not begin either.

    Args:
        order: indices of all requests, best first.
        run: the requests that would run, (n,).
        weaker: the requests that give up memory to the others, (n,).
    """
    requests = view.requests
    begins = run & ~weaker & (requests.computed_tokens == 0)
    holders = order[(run & weaker & (requests.computed_tokens > 0))[order]][::-1]
    uncomputed = requests.prompt_tokens + requests.output_tokens - requests.cached_tokens
    missing = np.maximum(uncomputed[begins], 0).sum() - view.free_kv_tokens
    held = requests.computed_tokens[holders]
    run = run.copy()
    taken_out = np.cumsum(held) - held < missing
    if taken_out.any():
        run[holders[taken_out]] = False
        behind = order[int(np.flatnonzero(order == holders[taken_out][-1])[0]) :]
        run[behind[weaker[behind] & (requests.computed_tokens[behind] == 0)]] = False
    return run


def sorted_indices(requests: Requests, *keys: Key) -> Ints:
    """The indices of all requests by the keys, the first key first; ties by arrival, then id."""
    columns = (*keys, requests.arrival_s)
    # argsort is faster and need not be stable, as ties are broken by id below.
    order: Ints = np.lexsort(columns[::-1]) if keys else np.argsort(requests.arrival_s)
    tied = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        ranked = column[order]
        tied &= ranked[1:] == ranked[:-1]
    if tied.any():
        _break_ties(requests, order, tied)
    return order


def plan_of(
    view: StepView, order: Ints, run: int | Flags, *, stay: StayLimits | None = None
) -> Plan:
    """The plan with this order; it drops requests where their SLO asks for it.

    It expires at the earliest `next_change_s` of a request.

    Args:
        order: indices of all requests, best first.
        run: the number of requests that run, first in the order and not dropped; or flags, (n,).
        stay: the result of `stay_limits_of`, if the caller has it already.
    """
    requests, stay = view.requests, stay_limits_of(view) if stay is None else stay
    dropped = drops(view, stay)
    dropped_indices = np.array([index for index, _ in dropped], dtype=np.int64)
    is_dropped = np.zeros(len(requests), dtype=bool)
    is_dropped[dropped_indices] = True
    kept = order[~is_dropped[order]]
    chosen = kept[:run] if isinstance(run, int) else kept[run[kept]]
    changes = next_change_s(view, stay)[kept]
    dropped_ids = requests.ids(dropped_indices)
    return Plan(
        order=(*requests.ids(kept), *dropped_ids),
        run=frozenset(requests.ids(chosen)),
        drop=tuple(zip(dropped_ids, (reason for _, reason in dropped), strict=True)),
        until_s=float(changes.min(initial=np.inf)),
    )


def _break_ties(requests: Requests, order: Ints, tied: Flags) -> None:
    """Sort each group of neighbours that are tied by id, in place.

    The calls of a stage arrive together, so there may be hundreds of small groups.
    """
    in_group = np.zeros(len(order), dtype=bool)
    in_group[1:] = tied
    in_group[:-1] |= tied
    places = np.flatnonzero(in_group)
    indices = order[places]
    id_of = requests.ids(indices).__getitem__
    by_id: list[int] = []
    for first, last in _tied_groups(tied):
        start = len(by_id)
        by_id += sorted(range(start, start + last - first + 1), key=id_of)
    order[places] = indices[by_id]


def _tied_groups(tied: Flags) -> Sequence[tuple[int, int]]:
    """First and last index of each group of neighbours that are tied."""
    edges = np.diff(np.concatenate([[False], tied, [False]]).astype(np.int8))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
