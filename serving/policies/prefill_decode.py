"""Prefill and decode: phases of requests, due times of tokens, and filling of steps.

Shared by the policies that distinguish the two phases. Arrays have one value per request of the
view, (n,).
"""

from __future__ import annotations

import numpy as np

from serving.errors import InvalidEngineConfig
from serving.policies.ranking import plan_of, sorted_indices
from serving.policies.urgency import DeadlineClass, next_token_due_s
from serving.requests import BEST_EFFORT, LATENCY, Flags, Floats, Ints, Requests
from serving.view import Plan, StepView

ACTIVE_LIMIT = 128
"""Default limit on the requests that hold KV cache at once: SLAI's number, used by RAD and
SLOs-Serve as well.

Source: Bari et al. (2025), section 7 (alpha and beta), section 4.2 (a tile of decodes).
"""

MEMORY_SHARE = 0.96
"""Share of the KV cache that may be allocated to requests that begin: the rest is for answers
longer than predicted.

Source: Bari et al. (2025), section 7 (where memory counts as short).
"""

FIXED_SHARE = 0.25
"""Largest share of a step that its fixed cost should take: shorter steps waste the machine."""

MIN_STEP_S = 1e-3
"""Shortest planned step, in seconds, for step models without a fixed cost."""


def active_size(view: StepView, batch: int) -> int:
    """The number of requests that may hold KV cache at once.

    Args:
        batch: this number; 0: ACTIVE_LIMIT, or the engine's slots if they are fewer.

    Raises:
        InvalidEngineConfig: a batch below 0.
    """
    if batch < 0:
        raise InvalidEngineConfig("batch", batch, "give 0 or more")
    return batch or min(ACTIVE_LIMIT, view.slots)


def uncomputed_tokens(requests: Requests) -> Ints:
    """Context tokens without cached keys and values; at least 1, the last token's own."""
    context: Ints = requests.prompt_tokens + requests.output_tokens
    uncomputed: Ints = np.maximum(context - requests.computed_tokens, 1)
    return uncomputed


def is_decoding(requests: Requests) -> Flags:
    """Whether each request's next step computes one token: the rest of its context is cached."""
    decodes: Flags = (requests.computed_tokens > 0) & (uncomputed_tokens(requests) == 1)
    return decodes


def decode_interval_s(view: StepView, remaining_tokens: Floats, due_s: Floats) -> Floats:
    """The TBT that each request needs: a stream's own, else time left / remaining tokens.

    So a deadline is translated for policies that only know TTFT and TBT. Infinity for best
    effort; at most 0 once the deadline has passed.

    Args:
        remaining_tokens: remaining output tokens, at least 1.
        due_s: due time of the last of them; ignored for streams.
    """
    requests = view.requests
    left_s = np.where(requests.kind == BEST_EFFORT, np.inf, due_s - view.now_s)
    return np.where(requests.kind == LATENCY, requests.tbt_s, left_s / remaining_tokens)


def token_due_s(view: StepView, interval_s: Floats) -> Floats:
    """Due time of each decode's next token: by a stream's schedule, else as `paced_due_s`."""
    paced_s = paced_due_s(view, interval_s)
    return np.where(view.requests.kind == LATENCY, next_token_due_s(view), paced_s)


def paced_due_s(view: StepView, interval_s: Floats) -> Floats:
    """Due time of each decode's next token: the end of its last step + its decode interval."""
    ended_s = np.minimum(view.requests.unscheduled_s + view.mean_step_s, view.now_s)
    due: Floats = ended_s + interval_s
    return due


def step_seconds(view: StepView, streams: Flags) -> float:
    """The planned duration of a step: min(tightest TBT, 4 * fixed cost), at least 2 * fixed cost.

    The tightest TBT of all streams is the papers' limit. Four times the fixed cost (FIXED_SHARE)
    is this project's choice, and applies wherever that TBT is longer: it is the shortest step that
    does not waste the machine, and requests with deadlines always need shorter steps. A single
    SLO may not push the step below twice the fixed cost, as no capacity would be left.
    """
    base_s = view.model.base_s
    tightest_s = float(view.requests.tbt_s[streams].min(initial=np.inf))
    return max(min(base_s / FIXED_SHARE, tightest_s), 2.0 * base_s, MIN_STEP_S)


def tokens_within(view: StepView, decodes: Flags, step_s: float) -> int:
    """The largest token budget with which a step of these decodes takes at most step_s.

    At least one token for each decode, and at least 1; at most the engine's own budget.
    """
    num_decodes = int(decodes.sum())
    decodes_s = view.model.seconds(
        new_tokens=num_decodes,
        num_decodes=num_decodes,
        decode_context_tokens=float(view.requests.computed_tokens[decodes].sum()),
    )
    spare_s = max(step_s - decodes_s, 0.0)
    if spare_s >= view.prefill_token_s * view.step_tokens:
        return view.step_tokens
    return min(max(num_decodes + int(spare_s / view.prefill_token_s), 1), view.step_tokens)


def spare_kv_tokens(view: StepView, keepers: Flags) -> float:
    """KV memory for requests that begin, in tokens, if all requests but `keepers` were evicted."""
    requests = view.requests
    held = float(requests.computed_tokens[~keepers].sum())
    return view.free_kv_tokens + held - (1.0 - MEMORY_SHARE) * view.kv_tokens


def fill_step(view: StepView, order: Ints, tier: Ints, *, size: int, budget: int) -> Flags:
    """The requests in the step: in order, while tokens, slots and KV memory last.

    A prompt that lacks a slot or memory takes no tokens, so decodes behind it get theirs. It takes
    slots and memory only from lower tiers: two prompts of the same tier that need each other's
    memory would evict each other for ever.

    Args:
        order: indices of all requests, best first.
        tier: of each request, (n,), 0 the best.
        size: largest number of requests that hold KV cache, and of requests in the step.
        budget: tokens to compute; the last prompt may be computed in part.
    Returns:
        flags, (n,).
    """
    requests = view.requests
    uncomputed = uncomputed_tokens(requests)[order]
    active = requests.computed_tokens > 0
    new, tiers = ~active[order], tier[order]
    num_new = np.cumsum(new)
    tokens = np.cumsum(np.where(new, uncomputed, 0))
    wanted = ~new
    for each in np.unique(tiers[new]):
        safe = active & (tier <= each)
        fits = (num_new <= size - int(safe.sum())) & (tokens <= spare_kv_tokens(view, safe))
        wanted |= new & (tiers == each) & fits
    tokens = np.where(wanted, uncomputed, 0)
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order] = wanted & (np.cumsum(wanted) <= size) & (np.cumsum(tokens) - tokens < budget)
    return chosen


def plan_of_step(view: StepView, order: Ints, chosen: Flags, classes: Ints) -> Plan:
    """The plan that computes the chosen requests; late ones only if no feasible one is left out.

    If none of the chosen can run, the first request of the order that is not dropped does.

    Args:
        order: indices of all requests, best first, by deadline class first.
        chosen: the requests to compute, (n,).
        classes: the DeadlineClass of each request, (n,).
    """
    feasible = classes == DeadlineClass.FEASIBLE
    run = chosen & feasible
    if run[feasible].all():
        run = chosen.copy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    plan = plan_of(view, sorted_indices(view.requests, (~run).astype(np.int64), rank), run)
    return plan if plan.run else plan_of(view, order, 1)
