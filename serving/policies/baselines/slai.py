"""SLAI: a decode waits until it must be scheduled; the shortest prompts are read meanwhile.

Source: Bari et al. (2025), Optimal scheduling algorithms for LLM inference, sections 6 and 7.
"""

from __future__ import annotations

import numpy as np

from serving.policies.fairness import fair_order, limit_users_ahead
from serving.policies.prefill_decode import (
    MEMORY_SHARE,
    active_size,
    decode_interval_s,
    fill,
    is_decoding,
    paced_due_s,
    plan_of_step,
    step_seconds,
    tokens_within,
    unread_tokens,
)
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class, due_s
from serving.requests import LATENCY
from serving.view import Plan, StepView


def slai(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    offset: float = 5.0,
    pressed_offset: float = 10.0,
    level: float = 0.9,
) -> Plan:
    """Critical decodes, then prompts begun, then the shortest new prompts, then other decodes.

    A step's token budget, which the paper tunes by hand, is the largest whose step stays within the
    tightest TBT of all streams, and within four times a step's fixed cost (`step_seconds`), which
    governs where the TBT is longer. At most `active_size` requests are active: the paper's 128
    unless a batch is asked for. New prompts begin only while the active are few enough and their
    memory is free. What the paper does not know: deadline and compound requests have the TBT of
    their required pace, the compound ones for their stage's sub-deadline; expired work fills what
    feasible work leaves.

    Args:
        batch: alpha and beta, as `active_size` takes it.
        offset: delta, how many steps before it is due a decode is critical.
        pressed_offset: the same while less than 1 - MEMORY_SHARE of the KV cache is free.
        level: the quantile that bounds the remaining length of paced answers.
    """
    requests, size = view.requests, active_size(view, batch)
    stands = deadline_class(view)
    decodes, active = is_decoding(requests), requests.computed_tokens > 0
    used = 1.0 - view.free_kv_tokens / view.kv_tokens
    early_steps = offset if used < MEMORY_SHARE else pressed_offset
    pace = decode_interval_s(view, requests.remaining_tokens(level), due_s(view))
    last_s = paced_due_s(view, pace) - early_steps * view.mean_step_s  # equation 8
    deferred = decodes & (last_s > view.now_s)
    group = np.where(decodes, np.where(deferred, 3, 0), np.where(active, 1, 2))
    order = sorted_indices(
        requests, stands, group, np.where(decodes, last_s, unread_tokens(requests))
    )
    if fairness:
        order = fair_order(view, order, fairness)
    streams = (requests.kind == LATENCY) & (stands == DeadlineClass.FEASIBLE)
    budget = tokens_within(view, decodes & ~deferred, step_seconds(view, streams))
    chosen = fill(view, order, stands, size=size, budget=budget)
    plan = plan_of_step(view, order, chosen, stands)._replace(step_tokens=budget, steps=1)
    return limit_users_ahead(view, plan) if fairness else plan
