"""From an order and the admitted requests to a plan: which requests run, in how large steps."""

from __future__ import annotations

import numpy as np

from serving.policies.calm.program_demand import Calls, seconds_added
from serving.policies.calm.step_duration import StepDuration
from serving.policies.prefill_decode import tokens_within
from serving.policies.ranking import plan_of, without_weaker_memory_holders
from serving.policies.urgency import BEST_EFFORT_DEADLINE_S, DeadlineClass, Urgency
from serving.requests import BEST_EFFORT, Flags, Ints
from serving.view import Plan, StepView

MIN_PREFILL_TOKENS = 64
"""Tokens for prefill in each step, however many requests decode."""


def build_plan(
    view: StepView,
    calls: Calls,
    order: Ints,
    *,
    admitted: Flags,
    others: Flags,
    urgency: Urgency,
    step: StepDuration,
    size: int,
    frame_steps: int,
) -> Plan:
    """The plan that runs the admitted requests, and some others.

    Args:
        order: indices of the requests that are not dropped, best first; the view is by arrival.
        admitted, others: the requests that run for their value, and in spare time, (n,) each.
        step: the duration of steps.
        size: number of requests that may run at once.
        frame_steps: validity of the plan in steps.
    """
    late = urgency.deadline_class > DeadlineClass.FEASIBLE
    run = admitted | others
    if step.frame_s < np.inf:
        capacity_s = frame_steps * (step.frame_s - view.model.base_s)
        run &= _in_frame(view, calls, order[run[order]], frame_steps, capacity_s)
    overdue = _longest_overdue(view, order[~late[order]])
    if size == 1 and admitted[order].any():
        overdue = overdue[:0]  # it would take the only slot in every plan
    run[overdue] = False
    chosen = np.zeros(len(run), dtype=bool)
    chosen[order[run[order]][: size - len(overdue)]] = True
    chosen[overdue] = True
    weaker = ~admitted
    weaker[overdue] = False
    chosen = without_weaker_memory_holders(view, order, chosen, weaker)
    decoding = chosen & (calls.uncomputed == 0)
    first = decoding & ~late  # decodes take one token each
    first[overdue] = True
    order = np.concatenate([order[each[order]] for each in (first, chosen & ~first, ~chosen)])
    budget = _step_tokens(view, decoding, step)
    plan = plan_of(view, order, chosen, stay=urgency.stay)
    chunk_tokens = max(budget - int(decoding.sum()), 1)
    return plan._replace(step_tokens=budget, chunk_tokens=chunk_tokens, steps=frame_steps)


def _in_frame(
    view: StepView, calls: Calls, chosen: Ints, frame_steps: int, capacity_s: float
) -> Flags:
    """Flags of the requests with capacity left in the frame after those before them: (n,)."""
    adds_s = seconds_added(view, calls, chosen, frame_steps)
    before_s = np.cumsum(adds_s) - adds_s
    fits = np.zeros(len(view.requests), dtype=bool)
    fits[chosen[before_s <= max(capacity_s, 0.0)]] = True
    return fits


def _longest_overdue(view: StepView, indices: Ints) -> Ints:
    """The oldest best-effort request past its default deadline; it runs in every plan.

    So no best-effort request starves. At most one index.
    """
    best_effort = np.sort(indices[view.requests.kind[indices] == BEST_EFFORT])[:1]
    waited_s = view.now_s - view.requests.arrival_s[best_effort]
    overdue: Ints = best_effort[waited_s > BEST_EFFORT_DEADLINE_S]
    return overdue


def _step_tokens(view: StepView, decoding: Flags, step: StepDuration) -> int:
    """The token budget of a step of at most `step.step_s`."""
    if not step.is_limited:
        return view.step_tokens
    fewest = int(decoding.sum()) + MIN_PREFILL_TOKENS
    return min(max(tokens_within(view, decoding, step.step_s), fewest), view.step_tokens)
