"""Fairness among users: whose turn it is, mixed into what a policy would do without it.

Source: Wu (2025), section 4.3 (the mix of priority and Fair); Sheng et al. (2024), Fairness in
serving large language models, section 4 (a counter of served tokens for each user).
"""

from __future__ import annotations

import numpy as np

from serving.errors import InvalidEngineConfig
from serving.policies.urgency import DeadlineClass, deadline_class
from serving.requests import Flags, Floats, Ints, Requests
from serving.view import Plan, StepView

LEAD = 2.0
"""A user is ahead who was served more than this many times the average of the others present."""

LIMITED_STEPS = 10
"""How long a plan holds that limits somebody: prompts of others that were read free their share."""

MIN_CHUNK_TOKENS = 16
"""However small a share is, a prompt is read to its end some day."""


def fair(served: Floats) -> Floats:
    """Fair(r): 1 for requests of the user who was served least, 0 for the most: (n,).

    Linear in the tokens served to each request's user, as the engine counts them: an input token
    1, an output token 2, and a user who comes back begins no lower than the least of those
    present. All 1 where all were served alike, so that a single user's order never changes.

    Args:
        served: `user_tokens` of each request.
    """
    least, most = served.min(initial=np.inf), served.max(initial=-np.inf)
    if not least < most:
        return np.ones(len(served))
    share: Floats = (most - served) / (most - least)
    return share


def mixed(priority: Floats | float, fair: Floats, fairness: float) -> Floats:
    """(1 - f) * priority + f * Fair(r), both in the same unit: (n,).

    Args:
        fairness: f, 0 to 1; 0 is the priority alone, 1 fairness alone.

    Raises:
        InvalidEngineConfig: a fairness outside of 0 to 1.
    """
    if not 0.0 <= fairness <= 1.0:
        raise InvalidEngineConfig("fairness", fairness, "give a number from 0 to 1")
    blend: Floats = (1.0 - fairness) * priority + fairness * fair
    return blend


def fair_order(view: StepView, order: Ints, fairness: float) -> Ints:
    """An order with fairness mixed in: by standing, then by the mix, then as before: (n,).

    A request's priority is its normalised rank among those of its standing: 1 for the first, 0
    for the last, so that it weighs the same whatever unit the order came from. Who has begun to
    read a prompt reads it to its end first: else users whose turns alternate could take the memory
    of each other's prompts for ever.

    Args:
        order: places of all requests, best first.

    Raises:
        InvalidEngineConfig: a fairness outside of 0 to 1.
    """
    has_begun = _is_reading(view.requests) & (view.requests.computed_tokens > 0)
    if len(np.unique(view.requests.user)) < 2:
        has_begun[:] = False  # there are no turns
    stands = deadline_class(view)[order]
    by_class = np.argsort(stands, kind="stable")
    _, first, size = np.unique(stands[by_class], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, size)
    normalised = 1.0 - rank / np.repeat(np.maximum(size - 1, 1), size)
    order, stands = order[by_class], stands[by_class]
    blend = mixed(normalised, fair(view.requests.user_tokens)[order], fairness)
    resorted: Ints = order[np.lexsort((rank, -blend, ~has_begun[order], stands))]
    return resorted


def limited(view: StepView, plan: Plan, unless: Flags | None = None) -> Plan:
    """The plan without what users who were served far more than others take beyond their share.

    An order alone protects nobody while there are places for all: every request in a step makes
    it longer for the others. So while several users are present, one who is ahead may take no
    more than an equal share of a step's time: as many sequences as fit in it, and of its prompts
    what fits once nobody else's is unread. What others leave of their shares stays unused, for
    nobody knows yet what they will ask. Whoever is held that way is paused, or waits; expired work
    of others does not run in its place.

    Args:
        unless: requests that are not held, whoever's they are: (n,).
    """
    requests = view.requests
    ahead = is_ahead(view)
    if unless is not None:
        ahead &= ~unless
    if not ahead.any():
        return plan
    named = {name: place for place, name in enumerate(requests.request_id.tolist())}
    num_kept = len(plan.order) - len(plan.drop)
    order = np.array([named[name] for name in plan.order[:num_kept]], dtype=np.int64)
    runs = np.zeros(len(requests), dtype=bool)
    runs[[named[name] for name in plan.run]] = True
    share_s = _share_s(view, runs, ahead)
    others_read = bool((runs & ~ahead & _is_reading(requests)).any())
    own = order[(runs & ahead)[order]]
    runs[own] = False
    runs[_within_shares(view, own, share_s, may_read=not others_read)] = True
    late = deadline_class(view) > DeadlineClass.FEASIBLE
    if (~runs & ~late)[order].any():
        runs &= ~late
    if not runs.any():
        runs[order[:1]] = True
    order = order[np.lexsort((~runs[order], late[order]))]
    running = requests.ids(order[runs[order]])
    chunk_tokens = plan.chunk_tokens
    if not others_read:
        chunk_tokens = min(chunk_tokens or view.step_tokens, _chunk_tokens(view, share_s))
    return plan._replace(
        order=(*requests.ids(order), *plan.order[num_kept:]),
        run=frozenset(running),
        chunk_tokens=chunk_tokens,
        steps=min(plan.steps, LIMITED_STEPS),
    )


def is_ahead(view: StepView) -> Flags:
    """Whose user was served more than LEAD times the average of the other users present: (n,)."""
    requests = view.requests
    users, mine = np.unique(requests.user, return_inverse=True)
    if len(users) < 2:
        return np.zeros(len(requests), dtype=bool)
    served = np.zeros(len(users))
    np.maximum.at(served, mine, requests.user_tokens)
    leading: Flags = served > LEAD * (served.sum() - served) / (len(users) - 1)
    return leading[mine]


def _share_s(view: StepView, runs: Flags, ahead: Flags) -> float:
    """Seconds of a step in which those ahead, too, take as much as the others on average.

    With n users of whom k are ahead: (base + what the others' decodes take) / (n - k), which is
    1/n of the whole step. The user who was served least is never ahead.
    """
    others = ~ahead
    decodes = _decode_s(view)[runs & others & ~_is_reading(view.requests)]
    return float(view.model.base_s + decodes.sum()) / len(np.unique(view.requests.user[others]))


def _within_shares(view: StepView, own: Ints, share_s: float, *, may_read: bool) -> Ints:
    """Of these places, best first, those that fit within their users' shares of the coming steps.

    Each user has a share for decodes, and one for prompts if anybody may read.
    """
    requests = view.requests
    reading = _is_reading(requests)[own]
    most_read = LIMITED_STEPS * _chunk_tokens(view, share_s) if may_read else 0
    costs = np.where(reading, _unread_tokens(requests)[own], _decode_s(view)[own])
    shares = np.where(reading, most_read, share_s)
    group = 2 * requests.user[own] + reading
    by_group = np.argsort(group, kind="stable")
    group, costs = group[by_group], costs[by_group]
    before = np.cumsum(costs) - costs
    _, first, size = np.unique(group, return_index=True, return_counts=True)
    before -= np.repeat(before[first], size)
    fits: Ints = own[by_group[before < shares[by_group]]]
    return fits


def _chunk_tokens(view: StepView, share_s: float) -> int:
    """Prompt tokens that a share of a step's time reads, at least MIN_CHUNK_TOKENS."""
    if share_s >= view.step_tokens * view.prefill_token_s:
        return view.step_tokens
    most = int(share_s / view.prefill_token_s)
    return min(max(most, MIN_CHUNK_TOKENS), view.step_tokens)


def _decode_s(view: StepView) -> Floats:
    """What each request's decode adds to a step: (n,)."""
    model = view.model
    context_s: Floats = model.context_s * view.requests.computed_tokens.astype(np.float64)
    return model.token_s + model.sequence_s + context_s


def _unread_tokens(requests: Requests) -> Ints:
    return requests.prompt_tokens + requests.output_tokens - requests.computed_tokens


def _is_reading(requests: Requests) -> Flags:
    """Whose next step computes more than one token."""
    return _unread_tokens(requests) > 1
