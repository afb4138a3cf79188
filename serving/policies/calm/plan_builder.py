"""From an order and who is admitted to a plan: who is computed, and in how long steps."""

from __future__ import annotations

import numpy as np

from serving.policies.calm.program_demand import Calls
from serving.policies.calm.step_duration import LEAST_S, StepDuration
from serving.policies.prefill_decode import tokens_within
from serving.policies.ranking import plan_of, without_weaker_memory_holders
from serving.policies.urgency import BEST_EFFORT_DEADLINE_S, DeadlineClass, Urgency
from serving.requests import BEST_EFFORT, Flags, Floats, Ints
from serving.view import Plan, StepView

FEWEST_CHUNK_TOKENS = 64
"""However many decode, so much of a prompt is read in a step."""

FEW = 0.3
"""Who decodes pauses for nobody's prompt while all who do take at most this share of the room."""


def planned(
    view: StepView,
    calls: Calls,
    order: Ints,
    *,
    admitted: Flags,
    urgency: Urgency,
    spare: Floats,
    given: float,
    step: StepDuration,
    size: int,
    frame_steps: int,
) -> Plan:
    """The plan that computes the admitted, and others in what they leave over.

    Args:
        order: places of the requests that are kept, best first; the view is by arrival.
        admitted: (n,).
        spare: the share of the machine's time that each may have who is not admitted, (n,).
        given: the share of its time that the machine gives away: what of it the admitted who are
            here leave of the next second is for work without a promise.
        size: how many may run at once.
        frame_steps: how many steps the plan is for.
    """
    late = urgency.deadline_class > DeadlineClass.FEASIBLE
    run = np.ones(len(admitted), dtype=bool)
    if admitted[order].any():  # else nobody is in the way
        idle = _idle(view, calls, order[admitted[order]], given, step)
        spare = np.where(view.requests.kind == BEST_EFFORT, np.maximum(spare, idle), spare)
        run = admitted | _in_spare_time(view, calls, order[~admitted[order]], spare)
    if step.is_limited:
        room_s = frame_steps * (step.step_s - view.model.base_s)
        run &= _in_room(view, calls, order[run[order]], frame_steps, room_s)
    overdue = _longest_overdue(view, order[~late[order]])
    if size == 1 and admitted[order].any():
        overdue = overdue[:0]  # it would be the only one that ever runs
    run[overdue] = False
    chosen = np.zeros(len(run), dtype=bool)
    chosen[order[run[order]][: size - len(overdue)]] = True
    chosen[overdue] = True
    weaker = ~admitted
    weaker[overdue] = False
    chosen = without_weaker_memory_holders(view, order, chosen, weaker)
    decoding = chosen & (calls.unread == 0)
    first = decoding & ~late  # each is a single token
    first[overdue] = True
    order = np.concatenate([order[each[order]] for each in (first, chosen & ~first, ~chosen)])
    budget = _step_tokens(view, decoding, step)
    plan = plan_of(view, order, chosen, stay=urgency.stay)
    chunk_tokens = max(budget - int(decoding.sum()), 1)
    return plan._replace(step_tokens=budget, chunk_tokens=chunk_tokens, steps=frame_steps)


def _in_spare_time(view: StepView, calls: Calls, others: Ints, spare: Floats) -> Flags:
    """Whose next second of work fits into the spare time that those before it leave."""
    fits = np.zeros(len(spare), dtype=bool)
    if not spare.any():
        return fits
    adds_s = _adds_s(view, calls, others, 1.0 / max(view.token_s, LEAST_S))
    before_s = np.cumsum(adds_s) - adds_s
    fits[others[before_s < spare[others]]] = True
    return fits


def _idle(view: StepView, calls: Calls, admitted: Ints, given: float, step: StepDuration) -> float:
    """The share of the next second that these leave over, whatever may arrive or was foretold."""
    steps = 1.0 / max(view.token_s, step.step_s if step.is_limited else 0.0, LEAST_S)
    return max(given * step.share - float(_adds_s(view, calls, admitted, steps).sum()), 0.0)


def _in_room(view: StepView, calls: Calls, chosen: Ints, frame_steps: int, room_s: float) -> Flags:
    """For whose work the frame still has room when it comes to them."""
    adds_s, decodes = _adds_s(view, calls, chosen, frame_steps), calls.unread[chosen] == 0
    if adds_s[decodes].sum() <= FEW * room_s:
        decodes_first = np.argsort(~decodes, kind="stable")
        chosen, adds_s = chosen[decodes_first], adds_s[decodes_first]
    before_s = np.cumsum(adds_s) - adds_s
    fits = np.zeros(len(view.requests), dtype=bool)
    fits[chosen[before_s <= max(room_s, 0.0)]] = True
    return fits


def _adds_s(view: StepView, calls: Calls, places: Ints, steps: float) -> Floats:
    """Seconds that each of these adds to so many steps."""
    model, tokens = view.model, np.minimum(calls.tokens[places], steps)
    token_s = model.token_s + model.sequence_s + model.context_s * calls.context[places]
    adds_s: Floats = calls.prompt_s[places] + token_s * tokens
    return adds_s


def _longest_overdue(view: StepView, places: Ints) -> Ints:
    """Who has waited longest beyond the default deadline: it runs in every plan, lest it starve."""
    best_effort = np.sort(places[view.requests.kind[places] == BEST_EFFORT])[:1]
    waited_s = view.now_s - view.requests.arrival_s[best_effort]
    overdue: Ints = best_effort[waited_s > BEST_EFFORT_DEADLINE_S]
    return overdue


def _step_tokens(view: StepView, decoding: Flags, step: StepDuration) -> int:
    """As many tokens as keep a step within the pace."""
    if not step.is_limited:
        return view.step_tokens
    fewest = int(decoding.sum()) + FEWEST_CHUNK_TOKENS
    return min(max(tokens_within(view, decoding, step.step_s), fewest), view.step_tokens)
