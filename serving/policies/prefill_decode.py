"""Prompts being read and answers being written, and what fits a step and the KV cache.

Shared by the policies that tell the two phases apart. Arrays are of length n, by place in the view.
"""

from __future__ import annotations

import numpy as np

from serving.errors import InvalidEngineConfig
from serving.policies.ranking import plan_of, sorted_indices
from serving.policies.urgency import DeadlineClass, next_token_due_s
from serving.requests import BEST_EFFORT, LATENCY, Flags, Floats, Ints, Requests
from serving.view import Plan, StepView

ACTIVE_LIMIT = 128
"""Most requests with a place in the KV cache, unless a batch is asked for: SLAI's number, which
the other policies that tell the phases apart have taken over.

Source: Bari et al. (2025), section 7 (alpha and beta), section 4.2 (a tile of decodes).
"""

MEMORY_SHARE = 0.96
"""Of the KV cache, what may be promised: the rest is for answers that outgrow their prediction.

Source: Bari et al. (2025), section 7 (where memory counts as short).
"""


FIXED_SHARE = 0.25
"""Of a step, what its fixed cost may be: with shorter steps the machine is wasted."""

MIN_STEP_S = 1e-3
"""A machine whose steps have no fixed cost still has steps."""


def active_size(view: StepView, batch: int) -> int:
    """How many requests may have a place in the KV cache at once.

    Args:
        batch: so many; 0: ACTIVE_LIMIT, or the engine's slots if they are fewer.

    Raises:
        InvalidEngineConfig: a batch below 0.
    """
    if batch < 0:
        raise InvalidEngineConfig("batch", batch, "give 0 or more")
    return batch or min(ACTIVE_LIMIT, view.slots)


def unread_tokens(requests: Requests) -> Ints:
    """Tokens of the context whose keys and values are missing, at least 1: the next one's own."""
    context: Ints = requests.prompt_tokens + requests.output_tokens
    unread: Ints = np.maximum(context - requests.computed_tokens, 1)
    return unread


def is_decoding(requests: Requests) -> Flags:
    """Whose next step computes one token: the prompt is read, and what was written is cached."""
    decodes: Flags = (requests.computed_tokens > 0) & (unread_tokens(requests) == 1)
    return decodes


def decode_interval_s(view: StepView, to_come: Floats, due_s: Floats) -> Floats:
    """The TBT that each request needs: a stream's own, else the time left over the tokens to come.

    The natural reading of a deadline for policies that know TTFT and TBT only. Infinity where
    nothing is promised; not above 0 where the deadline has passed.

    Args:
        to_come: output tokens still to come, at least 1.
        due_s: when the last of them is due; of no account for streams.
    """
    requests = view.requests
    left_s = np.where(requests.kind == BEST_EFFORT, np.inf, due_s - view.now_s)
    return np.where(requests.kind == LATENCY, requests.tbt_s, left_s / to_come)


def token_due_s(view: StepView, pace: Floats) -> Floats:
    """When each decode's next token is due: on a stream's schedule, else a pace after the last."""
    paced_s = paced_due_s(view, pace)
    return np.where(view.requests.kind == LATENCY, next_token_due_s(view), paced_s)


def paced_due_s(view: StepView, pace: Floats) -> Floats:
    """When each decode's next token is due: a pace after the end of the step that brought the
    last."""
    ended_s = np.minimum(view.requests.unscheduled_s + view.mean_step_s, view.now_s)
    due: Floats = ended_s + pace
    return due


def step_seconds(view: StepView, streams: Flags) -> float:
    """How long a step should take at most: the less of two, but at least twice the fixed cost.

    One is the tightest TBT of all streams, as in the papers. The other is our choice, and governs
    wherever that TBT is longer: four times the fixed cost (FIXED_SHARE), the shortest step that
    does not waste the machine, since requests that are paced by a deadline always ask for shorter
    steps than are good for all. Below twice the fixed cost no single promise may push it: the
    machine would have nothing left to give.
    """
    base_s = view.model.base_s
    tightest_s = float(view.requests.tbt_s[streams].min(initial=np.inf))
    return max(min(base_s / FIXED_SHARE, tightest_s), 2.0 * base_s, MIN_STEP_S)


def tokens_within(view: StepView, decodes: Flags, step_s: float) -> int:
    """The largest token budget with which a step of these decodes takes at most step_s.

    At least 1 and one a decode, at most the engine's own.
    """
    count = int(decodes.sum())
    decodes_s = view.model.seconds(
        new_tokens=count,
        num_decodes=count,
        decode_context_tokens=float(view.requests.computed_tokens[decodes].sum()),
    )
    spare_s = max(step_s - decodes_s, 0.0)
    if spare_s >= view.prefill_token_s * view.step_tokens:
        return view.step_tokens
    return min(max(count + int(spare_s / view.prefill_token_s), 1), view.step_tokens)


def spare_kv_tokens(view: StepView, keepers: Flags) -> float:
    """Room in the KV cache for newcomers, if all but the keepers gave up what they hold."""
    requests = view.requests
    held = float(requests.computed_tokens[~keepers].sum())
    return view.free_kv_tokens + held - (1.0 - MEMORY_SHARE) * view.kv_tokens


def fill(view: StepView, order: Ints, claim: Ints, *, size: int, budget: int) -> Flags:
    """Who is in the step: in order, while tokens, places and memory last.

    A new prompt without a place or memory takes no tokens, so that decodes behind it get theirs.
    It takes neither from an equal: two that need each other's memory would be read for ever.

    Args:
        claim: (n,), by place, 0 the strongest: newcomers may take the place and the memory of
            weaker claims alone.
        size: most requests at once, those with a place in the cache and those computed.
        budget: tokens to compute; the last prompt may be read in part.
    Returns:
        (n,), by place.
    """
    requests = view.requests
    unread = unread_tokens(requests)[order]
    active = requests.computed_tokens > 0
    new, claims = ~active[order], claim[order]
    places = np.cumsum(new)
    tokens = np.cumsum(np.where(new, unread, 0))
    wanted = ~new
    for each in np.unique(claims[new]):
        safe = active & (claim <= each)
        fits = (places <= size - int(safe.sum())) & (tokens <= spare_kv_tokens(view, safe))
        wanted |= new & (claims == each) & fits
    tokens = np.where(wanted, unread, 0)
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order] = wanted & (np.cumsum(wanted) <= size) & (np.cumsum(tokens) - tokens < budget)
    return chosen


def plan_of_step(view: StepView, order: Ints, chosen: Flags, stands: Ints) -> Plan:
    """The plan that computes the chosen, and late work only once nothing feasible is held.

    Where nobody was chosen the best of the order runs: an engine with work may not stand still.

    Args:
        order: places of all requests, best first, by standing first.
        chosen: who is computed, if nothing is dropped.
    """
    feasible = stands == DeadlineClass.FEASIBLE
    run = chosen & feasible
    if run[feasible].all():
        run = chosen.copy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    plan = plan_of(view, sorted_indices(view.requests, (~run).astype(np.int64), rank), run)
    return plan if plan.run else plan_of(view, order, 1)
