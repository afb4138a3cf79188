"""SLOs-Serve: requests that can be in time together are admitted and served before all others.

Source: Chen et al. (2025), SLOs-Serve, sections 3.1, 3.2 and 4.1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.baselines.slos_serve_admission import Demand, accepted_indices
from serving.policies.fairness import fair_order, limit_users_ahead
from serving.policies.prefill_decode import (
    MIN_STEP_S,
    active_size,
    decode_interval_s,
    fill_step,
    is_decoding,
    plan_of_step,
    step_seconds,
    token_due_s,
    tokens_within,
    uncomputed_tokens,
)
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class, due_s, next_token_due_s
from serving.requests import BEST_EFFORT, COMPOUND, LATENCY, Flags, Floats, Ints
from serving.slo import FutureWork
from serving.view import Plan, StepView

_PREFILL = FutureWork._fields.index("prefill_tokens")
_DECODE = FutureWork._fields.index("decode_tokens")

AHEAD_STEPS = 3.0
"""A decode with a token due within this many steps is urgent and precedes prefill: a request left
out of a step is computed in the next one, and steps with long prompts take longer than planned."""


def slos_serve(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    level: float = 0.9,
    candidates: int = 48,
) -> Plan:
    """Admit by dynamic programming, then fill steps of the planned duration.

    The planned duration of a step is `step_seconds`: the tightest TBT, as in the paper, but at most
    four times the fixed cost. At most `active_size` requests hold KV cache: by default 128, a
    number of another paper.

    Decodes with an SLO stay admitted while they are feasible. Admitted requests come first: urgent
    decodes, then prompts by their prefill deadline, then other decodes. Declined and best-effort
    requests share the rest. Each new token costs the time of the measured step model, so long
    contexts count; the paper counts tokens alone.

    Departures. The TBT of a deadline request is its `decode_interval_s`, and its prefill is due
    when steps of the planned duration can just complete the answer in time. A compound request has
    its stage's sub-deadline until it has passed, then its program's deadline; its demand includes
    the predicted rest of its program; and once its program was served, it stays admitted while its
    prefill can be in time. Declines are not remembered: the cheapest `candidates` waiting requests
    are considered again in each plan.

    Args:
        batch: largest number of requests that hold KV cache, see `active_size`.
        level: the quantile that bounds remaining output lengths.
        candidates: largest number of requests in one dynamic programme.

    Raises:
        InvalidEngineConfig: a batch below 0.
    """
    requests, size = view.requests, active_size(view, batch)
    classes, decodes = deadline_class(view), is_decoding(requests)
    has_slo = (classes == DeadlineClass.FEASIBLE) & (requests.kind != BEST_EFFORT)
    remaining_tokens = requests.remaining_tokens(level)
    step_s = step_seconds(view, has_slo & (requests.kind == LATENCY))
    due = due_s(view)
    interval_s = decode_interval_s(view, remaining_tokens, due)
    demand = demand_of(view, remaining_tokens, due, interval_s, step_s)
    begun = (requests.program_tokens > 0) & (demand.prefill_due_s > 0)
    kept = has_slo & (decodes | begun)
    waiting = has_slo & ~kept & (demand.prefill_due_s > 0)
    cost = demand.prompt_s + demand.later_s
    cheapest = cheapest_first(view, waiting, cost)[:candidates]
    served = cheapest_first(view, kept, cost)
    accepted = accepted_indices(
        view, demand, served, cheapest, step_s=step_s, max_accepted=size - len(served)
    )
    admitted = kept.copy()
    admitted[accepted] = True
    token_due = token_due_s(view, interval_s)
    urgent = decodes & (token_due <= view.now_s + AHEAD_STEPS * step_s)
    phase = np.where(urgent, 0, np.where(decodes, 2, 1))
    prompt_key = np.where(admitted, demand.prefill_due_s, cost)
    order = sorted_indices(
        requests,
        classes,
        (~admitted).astype(np.int64),
        phase,
        np.where(decodes, token_due, prompt_key),
    )
    if fairness:
        order = fair_order(view, order, fairness)
    budget = tokens_within(view, admitted & urgent, step_s)
    chosen = fill_step(view, order, classes + ~admitted, size=size, budget=budget)
    plan = plan_of_step(view, order, chosen, classes)._replace(step_tokens=budget, steps=1)
    return limit_users_ahead(view, plan) if fairness else plan


def cheapest_first(view: StepView, flags: Flags, cost: Floats) -> Ints:
    """The indices of the flagged requests, the cheapest first."""
    return sorted_indices(view.requests, (~flags).astype(np.int64), cost)[: int(flags.sum())]


def demand_of(
    view: StepView, remaining_tokens: Floats, due: Floats, interval_s: Floats, step_s: float
) -> Demand:
    """The demand of each request, by the measured step model.

    Args:
        remaining_tokens: upper bounds on the remaining output, (n,).
        due: the result of `due_s`.
        interval_s: the result of `decode_interval_s`.
        step_s: planned duration of a step.
    """
    requests, model = view.requests, view.model
    streams, decodes = requests.kind == LATENCY, is_decoding(requests)
    compounds, uncomputed = requests.kind == COMPOUND, uncomputed_tokens(requests)
    context = requests.prompt_tokens + requests.output_tokens + remaining_tokens / 2
    token_s = model.token_s + model.sequence_s + model.context_s * context
    answer_begins_s = np.where(streams, next_token_due_s(view), due - remaining_tokens * step_s)
    prefill_due_s = np.where(decodes, 0.0, answer_begins_s - view.now_s)
    span_s = remaining_tokens * np.where(streams | decodes, interval_s, step_s)
    program_s = np.where(compounds, requests.final_s - view.now_s, 0.0) - prefill_due_s
    future_s = requests.future[:, _PREFILL] * view.prefill_token_s
    future_s += requests.future[:, _DECODE] * token_s
    future_s = np.where(compounds, np.nan_to_num(future_s) / requests.stage_calls, 0.0)
    return Demand(
        prompt_s=np.where(decodes, 0.0, model.prompt_s(uncomputed, requests.computed_tokens)),
        prefill_due_s=prefill_due_s,
        later_s=remaining_tokens * token_s + future_s,
        span_s=np.maximum(np.maximum(program_s, span_s), MIN_STEP_S),
        kv_tokens=uncomputed + remaining_tokens,
    )
