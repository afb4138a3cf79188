"""Which newcomers can be served in time beside those already being served: a dynamic programme.

Source: Chen et al. (2025), SLOs-Serve, section 3.2.1 and appendix C (equation 5: the number of
accepted requests is the state, the prefill budget left its value).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.prefill_decode import spare_kv_tokens
from serving.requests import LATENCY, Flags, Floats, Ints
from serving.view import StepView


class Demand(NamedTuple):
    """What requests ask of the machine; each (n,).

    Attributes:
        prompt_s: seconds of machine to read what is unread of the prompt; 0 while decoding.
        prefill_due_s: by when that must be done, in seconds from now; 0 while decoding.
        later_s: seconds of machine for all that follows.
        span_s: over how many seconds from prefill_due_s on, evenly; above 0.
        kv_tokens: still to be cached.
    """

    prompt_s: Floats
    prefill_due_s: Floats
    later_s: Floats
    span_s: Floats
    kv_tokens: Floats


def accepted_indices(
    view: StepView, demand: Demand, kept: Ints, asking: Ints, *, step_s: float, places: int
) -> Ints:
    """The largest set of the asking whose demand never exceeds what the machine has to give.

    By prefill deadline, each is accepted or not. The state is how many streams and how many paced
    requests were accepted, two tiers of TBT; its value is the machine time left at that moment,
    which may not be below 0. The kept are served in any case. Memory is followed along each
    state's best path, where the paper makes it a dimension.

    Args:
        kept: whose demand comes first, even if it exceeds the machine; places in the view, in an
            order that does not depend on how the view lists them, as sums are rounded.
        asking: newcomers; so are theirs.
        step_s: planned duration of a step; what exceeds its fixed cost is to be given.
        places: most that may be accepted.
    """
    if places <= 0 or not len(asking):
        return asking[:0]
    asking = asking[np.argsort(demand.prefill_due_s[asking], kind="stable")]
    requests, due = view.requests, demand.prefill_due_s[asking]
    share = max(1.0 - view.model.base_s / step_s, 0.0)
    grown_s = np.diff(share * due - demand_until(demand, kept, due), prepend=0.0)
    waits_s = np.diff(due, prepend=0.0)
    tier = (requests.kind[asking] != LATENCY).astype(np.int64)
    rate = demand.later_s[asking] / demand.span_s[asking]
    count = np.indices((int((tier == 0).sum()) + 1, int(tier.sum()) + 1))
    number = count.sum(axis=0)
    busy = np.zeros(number.shape)
    for each in np.unique(tier):
        busy += float(rate[tier == each].mean()) * count[each]
    room = _room_tokens(view, demand, kept)
    left_s = np.where(number == 0, 0.0, -np.inf)
    held = np.zeros(number.shape)
    taken = np.zeros((len(asking), *number.shape), dtype=bool)
    for each, place in enumerate(asking):
        left_s += grown_s[each] - waits_s[each] * busy
        left_s = np.where((left_s >= 0) | (number == 0), left_s, -np.inf)
        more, fewer = _SHIFTS[tier[each]]
        with_it = left_s[fewer] - demand.prompt_s[place]
        memory = held[fewer] + demand.kv_tokens[place]
        better = (with_it >= 0) & (memory <= room) & (with_it > left_s[more])
        taken[each][more] = better
        left_s[more] = np.where(better, with_it, left_s[more])
        held[more] = np.where(better, memory, held[more])
    lasting = (left_s >= 0) & (busy <= share) & (number <= places)
    return _traced_back(asking, tier, taken, np.where(lasting, left_s, -np.inf))


def demand_until(demand: Demand, kept: Ints, moments_s: Floats) -> Floats:
    """Seconds of machine that the kept ask until each of some moments, in seconds from now."""
    since_s = moments_s[:, None] - demand.prefill_due_s[kept]
    part = np.clip(since_s / demand.span_s[kept], 0.0, 1.0)
    prompts_s = (since_s >= 0) * demand.prompt_s[kept]
    asked: Floats = (prompts_s + part * demand.later_s[kept]).sum(axis=1)
    return asked


_ALL, _MORE, _FEWER = slice(None), slice(1, None), slice(None, -1)
_SHIFTS = (((_MORE, _ALL), (_FEWER, _ALL)), ((_ALL, _MORE), (_ALL, _FEWER)))
"""By tier: the states with one more accepted, and those that they came from."""


def _room_tokens(view: StepView, demand: Demand, kept: Ints) -> float:
    keepers = np.zeros(len(view.requests), dtype=bool)
    keepers[kept] = True
    return spare_kv_tokens(view, keepers) - float(demand.kv_tokens[kept].sum())


def _traced_back(asking: Ints, tier: Ints, taken: Flags, left_s: Floats) -> Ints:
    """Of the states that accept the most, the one with the most time left: who is in it."""
    number = np.indices(left_s.shape).sum(axis=0)
    most = int(number[np.isfinite(left_s)].max(initial=0))
    best = int(np.argmax(np.where(number == most, left_s, -np.inf))) if most else 0
    at = [int(each) for each in np.unravel_index(best, left_s.shape)]
    accepted = []
    for each in range(len(asking) - 1, -1, -1):
        if taken[each][at[0], at[1]]:
            accepted.append(each)
            at[tier[each]] -= 1
    return asking[accepted]
