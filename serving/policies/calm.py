"""CALM, ours: admit what can be in time together, execute it by urgency.

Where the published formulation (Wu (2025), section 4.2; here `calm_published`) ranks requests by
goodput per second of generation and runs the best of them, this one first asks which programs the
machine can serve in time together, and spends nothing on the others while it is busy.
"""

from __future__ import annotations

import numpy as np

from serving.policies.admission import admit, demands_of, expected
from serving.policies.fairness import fair, limited, mixed
from serving.policies.programs import (
    Calls,
    Programs,
    arrived_programs,
    calls_of,
    ends_s,
    expired,
    present_programs,
    serial_tokens,
)
from serving.policies.ranking import plan_of, sorted_places
from serving.policies.urgency import BEST_EFFORT_DEADLINE_S, Standing, Urgency, to_drop, urgency_of
from serving.requests import BEST_EFFORT, LATENCY, Flags, Floats, Ints
from serving.view import Plan, StepView

MEDIAN = 0.5
SHORT = 0.25
"""Needs are foretold by the length that an answer has as likely as not; who is given up could not
even be in time with a short one."""

SOON_S, NEAR_S = 0.1, 3.0
"""A stream whose next token is due this soon goes before all else, one that is due near before
deadlines, and one that is further ahead of its schedule after them."""

TBT_SHARE = 0.9
"""A step may take this share of the shortest promised time between two tokens."""

FEWEST_CHUNK_TOKENS = 64
"""However many decode, so much of a prompt is read in a step."""

CROWD = 128
"""A plan holds for at least a step for each so many requests: deciding takes longer the more there
are, and so never more than about the same share of the time."""


def calm(
    view: StepView,
    *,
    batch: int = 0,
    utilisation: float = 0.8,
    token_share: float = 0.25,
    pace_level: float = 0.2,
    pace: float = 0.0,
    margin: float = 0.9,
    decode_share: float = 0.75,
    sequences: float = 0.0,
    frame_steps: int = 10,
    least_steps: int = 3,
    fairness: float = 0.0,
    price: bool = True,
    urgent: bool = True,
    correct: bool = True,
) -> Plan:
    """Admission by value per need, execution by urgency, at the pace that promises ask for.

    Args:
        batch: how many requests run at once; 0: as many as the engine has slots.
        utilisation: the share of the machine's time that admission gives away.
        token_share: of a program's worth, what its tokens make; the rest is for a kept promise.
        pace_level: a step may take as long as this share of what arrived cannot bear; 0.2: four
            of five programs could end in time at that pace.
        pace: seconds that a step may take; 0: by pace_level.
        margin: who has not begun must have this many times what it takes alone at that pace.
        decode_share: of a step, what decodes take; the rest is for prompts.
        sequences: how many decodes share a step's fixed cost; 0: as many as fit decode_share.
        frame_steps: steps between two decisions, unless something arrives or ends.
        least_steps: what arrives or ends within so many steps is gathered; more of them where a
            crowd makes decisions dear (CROWD).
        fairness: f, how far a user who was served less is preferred; 0: not at all.
        price: whether room is kept for better work that is still to arrive.
        urgent: whether the admitted run by urgency; if not, by worth per need.
        correct: whether foretold lengths are corrected by those of the latest answers.
    """
    view = _prepared(view, view.length_ratio if correct else 1.0)
    requests, model, urgency = view.requests, view.model, urgency_of(view)
    calls = calls_of(requests, MEDIAN)
    programs = present_programs(view, calls)
    arrived = arrived_programs(view, MEDIAN)
    step_s = pace or _pace_s(view, arrived, pace_level)
    together = sequences or _sequences(view, step_s, decode_share)
    need_s = programs.need_s(model, together)
    ends = ends_s(requests, programs)
    lost = expired(programs, urgency.standing) | (view.now_s + _best_s(view, programs) > ends)
    begun = requests.program_tokens[programs.first] > 0
    slowest_s = margin * (step_s if np.isfinite(step_s) else model.base_s)
    timely = begun | (view.now_s + programs.alone_s(slowest_s) <= ends)
    mean_tokens = max(float(arrived.tokens.mean()), 1.0) if len(view.arrivals) else 1.0
    worth = np.where(lost | ~timely, 0.0, programs.worth(requests, mean_tokens, token_share))
    if fairness:
        worth *= mixed(np.ones(len(worth)), fair(view)[programs.first], fairness)
    wanted = arrived.worth(view.arrivals, mean_tokens, token_share) * price
    in_time = view.arrivals.arrival_s + arrived.alone_s(slowest_s) <= ends_s(view.arrivals, arrived)
    expects = expected(view, arrived, arrived.need_s(model, together), wanted * in_time)
    demands = demands_of(view, calls, programs, need_s, ends, urgency.next_token_due_s)
    density = worth / need_s
    chosen = admit(demands, density, expects, utilisation=utilisation)
    admitted, overdue = chosen.programs[programs.of], _is_overdue(view)
    if urgent:
        rank = _ranks(view, urgency, admitted, lost[programs.of], overdue)
        due = np.where(requests.kind == LATENCY, urgency.due_s, requests.final_s)
    else:
        rank = np.where(urgency.standing > 0, 2, ~admitted)
        due = -density[programs.of]
    longest_first = np.where(np.isfinite(due), -calls.tokens, 0.0)
    order = np.lexsort((longest_first, due, rank))
    run = _who_runs(view, calls, order, admitted, overdue, chosen.spare, batch or view.slots)
    plan = _paced(view, calls, order, run, urgency.standing > Standing.FEASIBLE, step_s)
    least_steps = max(least_steps, len(requests) // CROWD)
    plan = plan._replace(steps=max(frame_steps, least_steps), least_steps=least_steps)
    return limited(view, plan) if fairness else plan


def _paced(
    view: StepView, calls: Calls, order: Ints, run: Flags, late: Flags, step_s: float
) -> Plan:
    """The plan whose steps keep the pace; decodes come first, as each is a single token."""
    decoding = run & (calls.unread == 0)
    first = decoding & ~late
    order = np.concatenate([order[each[order]] for each in (first, run & ~first, ~run)])
    budget = _step_tokens(view, decoding, step_s)
    return plan_of(view, order, run)._replace(
        step_tokens=budget, chunk_tokens=max(budget - int(decoding.sum()), 1)
    )


def _prepared(view: StepView, length_ratio: float) -> StepView:
    """Requests by (arrival, id), so that ties end in their place; lengths as they were lately."""
    requests = view.requests.take(sorted_places(view.requests))
    return view._replace(
        requests=requests.with_lengths(length_ratio),
        arrivals=view.arrivals.with_lengths(length_ratio),
    )


def _best_s(view: StepView, programs: Programs) -> Floats:
    """Seconds that each program needs if its answers are short and nothing else runs."""
    requests = view.requests
    short = requests.remaining_tokens(SHORT)
    serial = serial_tokens(requests, programs.of, programs.first, short)
    return programs._replace(serial=serial).alone_s(view.model.base_s + view.model.token_s)


def _pace_s(view: StepView, arrived: Programs, level: float) -> float:
    """How long a step may take."""
    arrivals = view.arrivals
    allowed_s = arrivals.final_s - arrivals.arrival_s - arrived.fixed_s
    paces = np.where(
        arrivals.kind == LATENCY, TBT_SHARE * arrivals.tbt_s, allowed_s / arrived.serial
    )
    paces = paces[np.isfinite(paces) & (paces > 0)]
    least_s = 1.5 * (view.model.base_s + view.model.token_s)
    if not len(paces):
        return np.inf
    streams = arrivals.kind == LATENCY
    most_s = TBT_SHARE * float(arrivals.tbt_s[streams].min(initial=np.inf))
    last = len(paces) - 1
    quantile = np.interp(level * last, np.arange(last + 1), np.sort(paces))
    return max(min(float(quantile), most_s), least_s)


def _sequences(view: StepView, step_s: float, decode_share: float) -> float:
    """How many decodes share a step of this length, prompts taking their part of it."""
    model = view.model
    each_s = model.token_s + model.sequence_s + model.context_s * 1000
    if not np.isfinite(step_s) or each_s <= 0:
        return float(view.slots)
    fitting = decode_share * (step_s - model.base_s) / each_s
    return float(np.clip(fitting, 1.0, view.slots))


def _ranks(view: StepView, urgency: Urgency, admitted: Flags, lost: Flags, overdue: Flags) -> Ints:
    """Classes of execution, lowest first; of those that hold for a request the last counts."""
    streams = view.requests.kind == LATENCY
    ahead_s = urgency.due_s - view.now_s
    late = urgency.standing > Standing.FEASIBLE
    rank = np.where(lost, 6, 5)
    rank[overdue] = 4
    rank[admitted] = 3
    rank[admitted & ~streams] = 2
    rank[admitted & streams & (ahead_s <= NEAR_S)] = 1
    rank[admitted & streams & (ahead_s <= SOON_S)] = 0
    rank[late] = 7 + urgency.standing[late]
    return rank


def _who_runs(
    view: StepView,
    calls: Calls,
    order: Ints,
    admitted: Flags,
    overdue: Flags,
    spare: float,
    size: int,
) -> Flags:
    """The admitted, and of the others what fits into the time that admission left over.

    Where nobody is admitted nobody is in the way. The best-effort request that is longest overdue
    always runs, so that it never starves.
    """
    kept = order[~to_drop(view)[order]]
    others = kept[~admitted[kept]]
    run = admitted.copy()
    if admitted[kept].any():
        model = view.model
        each_s = model.token_s + model.sequence_s + model.context_s * calls.context
        next_s = calls.unread * model.token_s + each_s * np.minimum(
            calls.tokens, 1.0 / view.token_s
        )
        begun_s = np.cumsum(next_s[others]) - next_s[others]
        fits = begun_s < spare
        if len(others) and overdue[others[0]]:
            fits[0] = True
        others = others[fits]
    run[others] = True
    chosen = np.zeros(len(order), dtype=bool)
    chosen[kept[run[kept]][:size]] = True
    return chosen


def _step_tokens(view: StepView, decoding: Flags, step_s: float) -> int:
    """As many tokens as keep a step within the pace."""
    requests, model = view.requests, view.model
    if not np.isfinite(step_s) or not model.token_s:
        return view.step_tokens
    num_decodes = int(decoding.sum())
    fixed_s = model.seconds(
        new_tokens=0,
        num_decodes=num_decodes,
        decode_context_tokens=float(requests.computed_tokens[decoding].sum()),
    )
    fitting = min((step_s - fixed_s) / model.token_s, float(view.step_tokens))
    return min(max(int(fitting), num_decodes + FEWEST_CHUNK_TOKENS), view.step_tokens)


def _is_overdue(view: StepView) -> Flags:
    requests = view.requests
    waited_s = view.now_s - requests.arrival_s
    overdue: Flags = (requests.kind == BEST_EFFORT) & (waited_s > BEST_EFFORT_DEADLINE_S)
    return overdue
