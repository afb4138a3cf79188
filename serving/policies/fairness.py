"""Fairness among users: the tokens served to each user, mixed into a policy's own order.

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
"""A user who was served more than this many times the mean of the other users present is ahead."""

LIMITED_STEPS = 10
"""Longest validity, in steps, of a plan that limits a user: prompts of other users that have been
computed meanwhile free capacity."""

MIN_CHUNK_TOKENS = 16
"""Smallest prefill chunk, in tokens, of a limited user: every prompt is computed eventually."""


def fair_scores(served: Floats) -> Floats:
    """Fair(r): 1 for requests of the user who was served least, 0 for the most: (n,).

    Linear in the tokens served to each request's user, as the engine counts them: an input token
    counts 1, an output token 2, and a returning user starts at the lowest count of the users
    present. All 1 if all users were served equally, so the order of a single user never changes.

    Args:
        served: `user_tokens` of each request, (n,).
    """
    least, most = served.min(initial=np.inf), served.max(initial=-np.inf)
    if not least < most:
        return np.ones(len(served))
    share: Floats = (most - served) / (most - least)
    return share


def mix_in_fairness(priority: Floats | float, scores: Floats, fairness: float) -> Floats:
    """(1 - f) * priority + f * Fair(r), both in the same unit: (n,).

    Args:
        scores: Fair(r) of each request, (n,).
        fairness: f, 0 to 1; 0 is the priority alone, 1 fairness alone.

    Raises:
        InvalidEngineConfig: a fairness outside 0 to 1.
    """
    if not 0.0 <= fairness <= 1.0:
        raise InvalidEngineConfig("fairness", fairness, "give a number from 0 to 1")
    mix: Floats = (1.0 - fairness) * priority + fairness * scores
    return mix


def fair_order(view: StepView, order: Ints, fairness: float) -> Ints:
    """An order with fairness mixed in: by deadline class, then the mix, then the old order: (n,).

    A request's priority is its normalised rank in its deadline class, 1 for the first and 0 for
    the last, so it does not depend on the unit of the policy's keys. With several users, prefills
    that have begun come first in their class: otherwise users whose turns alternate could evict
    each other's half-computed prompts for ever.

    Args:
        order: indices of all requests, best first.

    Raises:
        InvalidEngineConfig: a fairness outside 0 to 1.
    """
    has_begun = _is_prefill(view.requests) & (view.requests.computed_tokens > 0)
    if len(np.unique(view.requests.user)) < 2:
        has_begun[:] = False  # a single user has no turns
    classes = deadline_class(view)[order]
    by_class = np.argsort(classes, kind="stable")
    _, first, size = np.unique(classes[by_class], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, size)
    normalised = 1.0 - rank / np.repeat(np.maximum(size - 1, 1), size)
    order, classes = order[by_class], classes[by_class]
    mix = mix_in_fairness(normalised, fair_scores(view.requests.user_tokens)[order], fairness)
    resorted: Ints = order[np.lexsort((rank, -mix, ~has_begun[order], classes))]
    return resorted


def limit_users_ahead(view: StepView, plan: Plan, unless: Flags | None = None) -> Plan:
    """The plan, with users who are ahead limited to an equal share of each step.

    An order alone protects no user while there are slots for all requests: each request in a step
    makes it longer for the others. So while several users are present, a user who is ahead gets at
    most an equal share of a step's time: as many decodes as fit in it, and prefill chunks that fit
    in it while no other user's prompt is in prefill. Capacity that the others do not use stays
    free, because their next requests are not known. Requests beyond the share are paused or not
    admitted; expired work of other users does not run instead.

    Args:
        unless: requests that are exempt, (n,).
    """
    requests = view.requests
    ahead = is_ahead(view)
    if unless is not None:
        ahead &= ~unless
    if not ahead.any():
        return plan
    index_of = {request_id: index for index, request_id in enumerate(requests.request_id.tolist())}
    num_kept = len(plan.order) - len(plan.drop)
    order = np.array([index_of[each] for each in plan.order[:num_kept]], dtype=np.int64)
    runs = np.zeros(len(requests), dtype=bool)
    runs[[index_of[each] for each in plan.run]] = True
    share_s = _share_s(view, runs, ahead)
    others_prefill = bool((runs & ~ahead & _is_prefill(requests)).any())
    candidates = order[(runs & ahead)[order]]
    runs[candidates] = False
    runs[_within_shares(view, candidates, share_s, may_prefill=not others_prefill)] = True
    late = deadline_class(view) > DeadlineClass.FEASIBLE
    if (~runs & ~late)[order].any():
        runs &= ~late
    if not runs.any():
        runs[order[:1]] = True
    order = order[np.lexsort((~runs[order], late[order]))]
    running = requests.ids(order[runs[order]])
    chunk_tokens = plan.chunk_tokens
    if not others_prefill:
        chunk_tokens = min(chunk_tokens or view.step_tokens, _chunk_tokens(view, share_s))
    return plan._replace(
        order=(*requests.ids(order), *plan.order[num_kept:]),
        run=frozenset(running),
        chunk_tokens=chunk_tokens,
        steps=min(plan.steps, LIMITED_STEPS),
    )


def is_ahead(view: StepView) -> Flags:
    """Whether each request's user was served more than LEAD times the other users' mean: (n,)."""
    requests = view.requests
    users, user = np.unique(requests.user, return_inverse=True)
    if len(users) < 2:
        return np.zeros(len(requests), dtype=bool)
    served = np.zeros(len(users))
    np.maximum.at(served, user, requests.user_tokens)
    user_is_ahead: Flags = served > LEAD * (served.sum() - served) / (len(users) - 1)
    return user_is_ahead[user]


def _share_s(view: StepView, runs: Flags, ahead: Flags) -> float:
    """Seconds of a step for each user who is ahead: the mean of the others, fixed cost included.

    With n users, k of them ahead: (base + decodes of the others) / (n - k), which is 1/n of the
    whole step. The user who was served least is never ahead, so n > k.
    """
    others = ~ahead
    decodes = _decode_s(view)[runs & others & ~_is_prefill(view.requests)]
    return float(view.model.base_s + decodes.sum()) / len(np.unique(view.requests.user[others]))


def _within_shares(view: StepView, candidates: Ints, share_s: float, *, may_prefill: bool) -> Ints:
    """The candidates that fit in their users' shares of the next LIMITED_STEPS steps.

    Each user has a share for decodes and one for prefill. A candidate fits if those before it
    leave a part of the share.

    Args:
        candidates: indices of requests, best first.
        may_prefill: whether prefills have a share at all.
    """
    requests = view.requests
    is_prefill = _is_prefill(requests)[candidates]
    prefill_tokens = LIMITED_STEPS * _chunk_tokens(view, share_s) if may_prefill else 0
    costs = np.where(
        is_prefill, _uncomputed_tokens(requests)[candidates], _decode_s(view)[candidates]
    )
    shares = np.where(is_prefill, prefill_tokens, share_s)
    group = 2 * requests.user[candidates] + is_prefill
    by_group = np.argsort(group, kind="stable")
    group, costs = group[by_group], costs[by_group]
    before = np.cumsum(costs) - costs
    _, first, size = np.unique(group, return_index=True, return_counts=True)
    before -= np.repeat(before[first], size)
    fits: Ints = candidates[by_group[before < shares[by_group]]]
    return fits


def _chunk_tokens(view: StepView, share_s: float) -> int:
    """Prompt tokens computed in this part of a step, at least MIN_CHUNK_TOKENS."""
    if share_s >= view.step_tokens * view.prefill_token_s:
        return view.step_tokens
    tokens = int(share_s / view.prefill_token_s)
    return min(max(tokens, MIN_CHUNK_TOKENS), view.step_tokens)


def _decode_s(view: StepView) -> Floats:
    """Seconds that each request's decode adds to a step: (n,)."""
    model = view.model
    context_s: Floats = model.context_s * view.requests.computed_tokens.astype(np.float64)
    return model.token_s + model.sequence_s + context_s


def _uncomputed_tokens(requests: Requests) -> Ints:
    return requests.prompt_tokens + requests.output_tokens - requests.computed_tokens


def _is_prefill(requests: Requests) -> Flags:
    """Whether each request has more than one token to compute: (n,)."""
    return _uncomputed_tokens(requests) > 1
