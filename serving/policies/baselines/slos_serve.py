"""SLOs-Serve: who can be served in time is admitted, and has the machine before all others.

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
    fill,
    is_decoding,
    plan_of_step,
    step_seconds,
    token_due_s,
    tokens_within,
    unread_tokens,
)
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class, due_s, next_token_due_s
from serving.requests import BEST_EFFORT, COMPOUND, LATENCY, Flags, Floats, Ints
from serving.slo import FutureWork
from serving.view import Plan, StepView

_PREFILL = FutureWork._fields.index("prefill_tokens")
_DECODE = FutureWork._fields.index("decode_tokens")

AHEAD_STEPS = 3.0
"""A decode whose token is due within so many steps is computed before prompts are read: who is left
out of a step is computed in the next, and a step of long prompts takes longer than planned."""


def slos_serve(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    level: float = 0.9,
    candidates: int = 48,
) -> Plan:
    """Admit by dynamic programme, then fill steps as long as promises and the fixed cost allow.

    A step is as long as the tightest TBT of all streams allows, and at most four times its fixed
    cost (`step_seconds`), which governs where the TBT is longer: the paper takes the largest batch
    that the tightest TPOT allows. At most `active_size` requests are active: 128, a number of
    another paper's, unless a batch is asked for.

    Who decodes stays admitted while it can be in time. The admitted come first: decodes whose
    token is due, prompts by the time when they must have been read, other decodes. Declined work
    and best effort share what is left. Each new token costs what the measured step model says, so
    that long contexts count, where the paper has tokens alone.

    What the paper does not know: a deadline is the TBT at which it is just met, and its prompt
    must be read while steps of the planned length can still write the answer in time; a compound
    request has its stage's sub-deadline while that lies ahead, then its program's, asks for the
    learned rest of its program as well, and once its program was served it is admitted for as
    long as it can be in time. There is no memory of declines: who waits is judged anew, the
    cheapest `candidates` of them.

    Args:
        batch: most active requests, as `active_size` takes it.
        level: the quantile that bounds remaining output lengths.
        candidates: most requests in one dynamic programme.

    Raises:
        InvalidEngineConfig: a batch below 0.
    """
    requests, size = view.requests, active_size(view, batch)
    stands, decodes = deadline_class(view), is_decoding(requests)
    promised = (stands == DeadlineClass.FEASIBLE) & (requests.kind != BEST_EFFORT)
    to_come = requests.remaining_tokens(level)
    step_s = step_seconds(view, promised & (requests.kind == LATENCY))
    due = due_s(view)
    pace = decode_interval_s(view, to_come, due)
    demand = demand_of(view, to_come, due, pace, step_s)
    begun = (requests.program_tokens > 0) & (demand.prefill_due_s > 0)
    kept = promised & (decodes | begun)
    asking = promised & ~kept & (demand.prefill_due_s > 0)
    cost = demand.prompt_s + demand.later_s
    cheapest = first_of(view, asking, cost)[:candidates]
    served = first_of(view, kept, cost)
    accepted = accepted_indices(
        view, demand, served, cheapest, step_s=step_s, places=size - len(served)
    )
    admitted = kept.copy()
    admitted[accepted] = True
    token_due = token_due_s(view, pace)
    urgent = decodes & (token_due <= view.now_s + AHEAD_STEPS * step_s)
    phase = np.where(urgent, 0, np.where(decodes, 2, 1))
    prompt_key = np.where(admitted, demand.prefill_due_s, cost)
    order = sorted_indices(
        requests,
        stands,
        (~admitted).astype(np.int64),
        phase,
        np.where(decodes, token_due, prompt_key),
    )
    if fairness:
        order = fair_order(view, order, fairness)
    budget = tokens_within(view, admitted & urgent, step_s)
    chosen = fill(view, order, stands + ~admitted, size=size, budget=budget)
    plan = plan_of_step(view, order, chosen, stands)._replace(step_tokens=budget, steps=1)
    return limit_users_ahead(view, plan) if fairness else plan


def first_of(view: StepView, those: Flags, cost: Floats) -> Ints:
    """The places of some requests, the cheapest first."""
    return sorted_indices(view.requests, (~those).astype(np.int64), cost)[: int(those.sum())]


def demand_of(view: StepView, to_come: Floats, due: Floats, pace: Floats, step_s: float) -> Demand:
    """What each request asks of the machine, by the measured step model."""
    requests, model = view.requests, view.model
    streams, decodes = requests.kind == LATENCY, is_decoding(requests)
    compounds, unread = requests.kind == COMPOUND, unread_tokens(requests)
    context = requests.prompt_tokens + requests.output_tokens + to_come / 2
    token_s = model.token_s + model.sequence_s + model.context_s * context
    read_by_s = np.where(streams, next_token_due_s(view), due - to_come * step_s) - view.now_s
    read_by_s = np.where(decodes, 0.0, read_by_s)
    span_s = to_come * np.where(streams | decodes, pace, step_s)
    program_s = np.where(compounds, requests.final_s - view.now_s, 0.0) - read_by_s
    future_s = requests.future[:, _PREFILL] * view.prefill_token_s
    future_s += requests.future[:, _DECODE] * token_s
    future_s = np.where(compounds, np.nan_to_num(future_s) / requests.stage_calls, 0.0)
    return Demand(
        prompt_s=np.where(decodes, 0.0, model.prompt_s(unread, requests.computed_tokens)),
        prefill_due_s=read_by_s,
        later_s=to_come * token_s + future_s,
        span_s=np.maximum(np.maximum(program_s, span_s), MIN_STEP_S),
        kv_tokens=unread + to_come,
    )
