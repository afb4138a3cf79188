"""RAD: steps that fill the tiles of matrix multiplication, of prompts or of decodes.

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
    unread_tokens,
)
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class
from serving.requests import Ints
from serving.view import Plan, StepView

TILE_TOKENS = 256
"""Tokens that fill the tiles in all three dimensions: their least common multiple, t_lcm."""


def rad(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    tile_tokens: int = TILE_TOKENS,
) -> Plan:
    """Read prompts, first come first served, until a tile of decodes is full; then only decode.

    A prompt step has as many whole tiles as the engine's token budget holds: the paper's model
    makes them equally good, and a real step has a fixed cost. It knows no promise but that
    expired work only fills what feasible work leaves. The cycle's length n, of which the theorem
    asks only that it is large, is without limit here. A prompt whose memory is not free waits as
    if the tile were full.

    Args:
        batch: t_col, as `active_size` takes it.
        tile_tokens: t_lcm.
    """
    requests, size = view.requests, active_size(view, batch)
    stands = deadline_class(view)
    order = sorted_indices(requests, stands)
    if fairness:
        order = fair_order(view, order, fairness)
    budget = max(view.step_tokens // tile_tokens, 1) * tile_tokens
    budget = min(budget, view.step_tokens)
    ranked = order[stands[order] == DeadlineClass.FEASIBLE]
    reading = prompts_to_read(view, ranked, size, budget)
    chosen = np.zeros(len(order), dtype=bool)
    if len(reading):
        chosen[reading] = True
        steps = max(int(unread_tokens(requests)[reading].sum()) // budget, 1)
        plan = plan_of_step(view, order, chosen, stands)
        plan = plan._replace(step_tokens=budget, steps=steps)
    else:
        chosen[ranked[is_decoding(requests)[ranked]][:size]] = True
        if chosen[ranked].all():
            chosen[order[:size]] = True
        plan = plan_of_step(view, order, chosen, stands)
    return limit_users_ahead(view, plan) if fairness else plan


def prompts_to_read(view: StepView, ranked: Ints, size: int, budget: int) -> Ints:
    """Whose prompts are read in the next step; nobody's where a tile of decodes is full.

    Args:
        ranked: places of the feasible requests, best first.
    """
    requests = view.requests
    active = np.zeros(len(requests), dtype=bool)
    active[ranked] = requests.computed_tokens[ranked] > 0
    unread = unread_tokens(requests)
    prompts = ranked[~is_decoding(requests)[ranked]]
    new = ~active[prompts]
    places = np.cumsum(new) <= size - int(active.sum())
    room = np.cumsum(np.where(new, unread[prompts], 0)) <= spare_kv_tokens(view, active)
    prompts = prompts[~new | (places & room)]
    tokens = unread[prompts]
    return prompts[np.cumsum(tokens) - tokens < budget][:size]
