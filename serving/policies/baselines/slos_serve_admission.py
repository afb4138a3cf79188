"""Admission by dynamic programming: the waiting requests that can be in time beside served ones.

Source: Chen et al. (2025), SLOs-Serve, section 3.2.1 and appendix C (equation 5: the state is the
number of accepted requests, its value the remaining prefill budget).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.prefill_decode import spare_kv_tokens
from serving.requests import LATENCY, Flags, Floats, Ints
from serving.view import StepView


class Demand(NamedTuple):
    """The machine time that requests need, and when; each (n,).

    Attributes:
        prompt_s: machine seconds of the remaining prefill; 0 while decoding.
        prefill_due_s: prefill deadline, in seconds from now; 0 while decoding.
        later_s: machine seconds after the prefill.
        span_s: later_s is spread evenly over this many seconds after prefill_due_s; above 0.
        kv_tokens: tokens still to be cached.
    """

    prompt_s: Floats
    prefill_due_s: Floats
    later_s: Floats
    span_s: Floats
    kv_tokens: Floats


def accepted_indices(
    view: StepView, demand: Demand, kept: Ints, waiting: Ints, *, step_s: float, max_accepted: int
) -> Ints:
    """The largest set of waiting requests with a total demand that never exceeds the capacity.

    Requests are accepted or declined in the order of their prefill deadlines. The state is the
    number of accepted streams and the number of other accepted requests (two tiers of TBT); its
    value is the machine time left at the present prefill deadline, which must not be below 0. The
    kept requests are served in any case. Memory is tracked along the best path to each state; in
    the paper it is a dimension of the state.

    Args:
        kept: indices of the requests that are served first, even if they exceed the capacity, in
            an order that does not depend on the order of the view, because sums are rounded.
        waiting: indices of the candidates, in such an order as well.
        step_s: planned duration of a step; capacity is the share beyond its fixed cost.
        max_accepted: largest number of accepted requests.
    """
    if max_accepted <= 0 or not len(waiting):
        return waiting[:0]
    waiting = waiting[np.argsort(demand.prefill_due_s[waiting], kind="stable")]
    requests, due = view.requests, demand.prefill_due_s[waiting]
    share = max(1.0 - view.model.base_s / step_s, 0.0)
    added_s = np.diff(share * due - demand_until(demand, kept, due), prepend=0.0)
    elapsed_s = np.diff(due, prepend=0.0)
    tier = (requests.kind[waiting] != LATENCY).astype(np.int64)
    rate = demand.later_s[waiting] / demand.span_s[waiting]
    tier_counts = np.indices((int((tier == 0).sum()) + 1, int(tier.sum()) + 1))
    num_accepted = tier_counts.sum(axis=0)
    busy = np.zeros(num_accepted.shape)
    for each in np.unique(tier):
        busy += float(rate[tier == each].mean()) * tier_counts[each]
    free_kv_tokens = _free_kv_tokens(view, demand, kept)
    left_s = np.where(num_accepted == 0, 0.0, -np.inf)
    held = np.zeros(num_accepted.shape)
    taken = np.zeros((len(waiting), *num_accepted.shape), dtype=bool)
    for row, index in enumerate(waiting):
        left_s += added_s[row] - elapsed_s[row] * busy
        left_s = np.where((left_s >= 0) | (num_accepted == 0), left_s, -np.inf)
        after, before = _TRANSITIONS[tier[row]]
        left_after_s = left_s[before] - demand.prompt_s[index]
        held_after = held[before] + demand.kv_tokens[index]
        better = (left_after_s >= 0) & (held_after <= free_kv_tokens)
        better &= left_after_s > left_s[after]
        taken[row][after] = better
        left_s[after] = np.where(better, left_after_s, left_s[after])
        held[after] = np.where(better, held_after, held[after])
    sustainable = (left_s >= 0) & (busy <= share) & (num_accepted <= max_accepted)
    return _traced_back(waiting, tier, taken, np.where(sustainable, left_s, -np.inf))


def demand_until(demand: Demand, kept: Ints, times_s: Floats) -> Floats:
    """Machine seconds that the kept requests need until each time, in seconds from now: (k,)."""
    since_s = times_s[:, None] - demand.prefill_due_s[kept]
    part = np.clip(since_s / demand.span_s[kept], 0.0, 1.0)
    prompts_s = (since_s >= 0) * demand.prompt_s[kept]
    needed_s: Floats = (prompts_s + part * demand.later_s[kept]).sum(axis=1)
    return needed_s


_ALL, _MORE, _FEWER = slice(None), slice(1, None), slice(None, -1)
_TRANSITIONS = (((_MORE, _ALL), (_FEWER, _ALL)), ((_ALL, _MORE), (_ALL, _FEWER)))
"""By tier: the states after one more request is accepted, and the states before."""


def _free_kv_tokens(view: StepView, demand: Demand, kept: Ints) -> float:
    keepers = np.zeros(len(view.requests), dtype=bool)
    keepers[kept] = True
    return spare_kv_tokens(view, keepers) - float(demand.kv_tokens[kept].sum())


def _traced_back(waiting: Ints, tier: Ints, taken: Flags, left_s: Floats) -> Ints:
    """The accepted requests of the best final state: the most requests, then the most time left."""
    num_accepted = np.indices(left_s.shape).sum(axis=0)
    most = int(num_accepted[np.isfinite(left_s)].max(initial=0))
    best = int(np.argmax(np.where(num_accepted == most, left_s, -np.inf))) if most else 0
    state = [int(each) for each in np.unravel_index(best, left_s.shape)]
    accepted = []
    for row in range(len(waiting) - 1, -1, -1):
        if taken[row][state[0], state[1]]:
            accepted.append(row)
            state[tier[row]] -= 1
    return waiting[accepted]
