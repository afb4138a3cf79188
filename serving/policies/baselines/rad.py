"""RAD: steps of prefill or of decodes that fill the tiles of the GPU's matrix multiplications.

Source: Bari et al. (2025), Optimal scheduling algorithms for LLM inference, section 4.2 and
algorithm 1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.fairness import fair_order, limit_users_ahead
from serving.policies.prefill_decode import (
    active_size,
    is_decoding,
    plan_of_step,
    spare_kv_tokens,
    uncomputed_tokens,
)
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class
from serving.requests import Ints
from serving.view import Plan, StepView

TILE_TOKENS = 256
"""Tokens that fill the tiles in all three dimensions: t_lcm, their least common multiple."""


def rad(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    tile_tokens: int = TILE_TOKENS,
) -> Plan:
    """Prefill prompts, first come first served, until a tile of decodes is full; then only decode.

    A prefill step has as many whole tiles as the engine's token budget holds: they are equally
    good in the paper's model, and a real step has a fixed cost. SLOs are not used, except that
    expired work runs only in capacity that feasible work leaves. The cycle's length n has no limit
    here; the theorem only requires that it is large. A prompt without free memory waits as if the
    tile were full.

    Args:
        batch: t_col, see `active_size`.
        tile_tokens: t_lcm.
    """
    requests, size = view.requests, active_size(view, batch)
    classes = deadline_class(view)
    order = sorted_indices(requests, classes)
    if fairness:
        order = fair_order(view, order, fairness)
    budget = max(view.step_tokens // tile_tokens, 1) * tile_tokens
    budget = min(budget, view.step_tokens)
    ranked = order[classes[order] == DeadlineClass.FEASIBLE]
    prefills = next_prefills(view, ranked, size, budget)
    chosen = np.zeros(len(order), dtype=bool)
    if len(prefills):
        chosen[prefills] = True
        steps = max(int(uncomputed_tokens(requests)[prefills].sum()) // budget, 1)
        plan = plan_of_step(view, order, chosen, classes)
        plan = plan._replace(step_tokens=budget, steps=steps)
    else:
        chosen[ranked[is_decoding(requests)[ranked]][:size]] = True
        if chosen[ranked].all():
            chosen[order[:size]] = True
        plan = plan_of_step(view, order, chosen, classes)
    return limit_users_ahead(view, plan) if fairness else plan


def next_prefills(view: StepView, ranked: Ints, size: int, budget: int) -> Ints:
    """Indices of the requests to prefill in the next step; empty if a tile of decodes is full.

    Args:
        ranked: indices of the feasible requests, best first.
        size: largest number of requests that hold KV cache.
        budget: tokens of a prefill step.
    """
    requests = view.requests
    active = np.zeros(len(requests), dtype=bool)
    active[ranked] = requests.computed_tokens[ranked] > 0
    uncomputed = uncomputed_tokens(requests)
    prompts = ranked[~is_decoding(requests)[ranked]]
    new = ~active[prompts]
    has_slot = np.cumsum(new) <= size - int(active.sum())
    new_tokens = np.cumsum(np.where(new, uncomputed[prompts], 0))
    has_memory = new_tokens <= spare_kv_tokens(view, active)
    prompts = prompts[~new | (has_slot & has_memory)]
    tokens = uncomputed[prompts]
    return prompts[np.cumsum(tokens) - tokens < budget][:size]
