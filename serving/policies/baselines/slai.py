"""SLAI: decodes are deferred until they become critical; short prompts are prefilled meanwhile.

Source: Bari et al. (2025), Optimal scheduling algorithms for LLM inference, sections 6 and 7.
"""

from __future__ import annotations

import numpy as np

from serving.policies.fairness import fair_order, limit_users_ahead
from serving.policies.prefill_decode import (
    MEMORY_SHARE,
    active_size,
    decode_interval_s,
    fill_step,
    is_decoding,
    paced_due_s,
    plan_of_step,
    step_seconds,
    tokens_within,
    uncomputed_tokens,
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
    """Critical decodes, then prefills that have begun, then the shortest new prompts, then others.

    The token budget of a step, which the paper tunes by hand, is the largest that keeps the step
    within `step_seconds`. At most `active_size` requests hold KV cache: the paper's 128 by
    default. New prompts begin only while fewer requests hold KV cache and memory is free.

    Departures: the TBT of deadline and compound requests is their `decode_interval_s`, towards the
    stage's sub-deadline for compound ones; expired work runs only in capacity that feasible work
    leaves.

    Args:
        batch: alpha and beta, see `active_size`.
        offset: delta, a decode is critical this many steps before its token is due.
        pressed_offset: the same while less than 1 - MEMORY_SHARE of the KV cache is free.
        level: the quantile that bounds the remaining output of requests with deadlines.
    """
    requests, size = view.requests, active_size(view, batch)
    classes = deadline_class(view)
    decodes, active = is_decoding(requests), requests.computed_tokens > 0
    used = 1.0 - view.free_kv_tokens / view.kv_tokens
    early_steps = offset if used < MEMORY_SHARE else pressed_offset
    interval_s = decode_interval_s(view, requests.remaining_tokens(level), due_s(view))
    critical_s = paced_due_s(view, interval_s) - early_steps * view.mean_step_s  # equation 8
    deferred = decodes & (critical_s > view.now_s)
    group = np.where(decodes, np.where(deferred, 3, 0), np.where(active, 1, 2))
    order = sorted_indices(
        requests, classes, group, np.where(decodes, critical_s, uncomputed_tokens(requests))
    )
    if fairness:
        order = fair_order(view, order, fairness)
    streams = (requests.kind == LATENCY) & (classes == DeadlineClass.FEASIBLE)
    budget = tokens_within(view, decodes & ~deferred, step_seconds(view, streams))
    chosen = fill_step(view, order, classes, size=size, budget=budget)
    plan = plan_of_step(view, order, chosen, classes)._replace(step_tokens=budget, steps=1)
    return limit_users_ahead(view, plan) if fairness else plan
