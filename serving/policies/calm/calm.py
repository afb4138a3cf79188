"""CALM, this project's version: admission control by value density, then least slack first.

The published formulation (Wu (2025), section 4.2; here `calm_published`) ranks requests by goodput
per second of generation and runs the best. This one first decides which programs the machine can
serve in time together, and spends no time on the others while it is busy.
"""

from __future__ import annotations

import numpy as np

from serving.policies.calm.admission import (
    admit,
    demand_curves_of,
    expected_demand,
)
from serving.policies.calm.plan_builder import build_plan
from serving.policies.calm.program_demand import (
    Calls,
    ProgramDemand,
    arrived_programs,
    calls_of,
    expired,
    present_programs,
    with_shares,
)
from serving.policies.calm.spare_time import in_spare_time
from serving.policies.calm.step_duration import (
    StepDuration,
    affordable_duration,
    backlog_duration,
    best_duration,
    saving_duration,
)
from serving.policies.fairness import fair_scores, limit_users_ahead, mix_in_fairness
from serving.policies.preemption_gate import MIN_GAIN
from serving.policies.ranking import sorted_indices
from serving.policies.urgency import DeadlineClass, Urgency, to_drop, urgency_of
from serving.requests import BEST_EFFORT, LATENCY, MAX_VALUE, Flags, Floats, Requests
from serving.view import Plan, StepView

Bytes = np.ndarray[tuple[int], np.dtype[np.int8]]

UTILISATION = 0.85
"""The share of machine time that is allocated: predictions and arrivals deviate from their mean."""

BEGIN_MARGIN = 0.55
"""A program that has not begun must be in time alone with steps of this factor times the chosen
duration. It is below 1 because answers may be shorter than predicted, and because steps are
shortened for programs that are slightly behind."""

TOKEN_SHARE = 0.6
"""Share of a program's value that its tokens make; the rest is for meeting its SLO. It is above one
half because, of the upper bound, tokens are further away than met SLOs."""

HELD_STEPS, CROWD = 4, 128
"""A plan answers the arrivals and ends of HELD_STEPS steps, and of one more per CROWD requests: the
more requests there are, the longer planning takes."""

HELD_SHARE = 0.25
"""A plan holds for at most this share of the shortest TTFT or deadline of the recent arrivals that
could be in time: a new request waits for the next plan."""


def calm(
    view: StepView,
    *,
    batch: int = 0,
    utilisation: float = UTILISATION,
    token_share: float = TOKEN_SHARE,
    pace: float = 0.0,
    frame_steps: int = 10,
    fairness: float = 0.0,
    price: bool = True,
    correct: bool = True,
) -> Plan:
    """Admit by value / demand, order by slack, with steps of the most valuable duration.

    Args:
        batch: number of requests that run at once; 0: the engine's slots.
        utilisation: share of machine time that admission allocates.
        token_share: share of a program's value that its tokens make; the rest is for its SLO.
        pace: seconds that a step may take; 0: by `best_duration`.
        frame_steps: steps between two plans, unless a request arrives or ends.
        fairness: f: how much of its value the work of the most-served user loses. Above 0, a user
            who is ahead is limited to an equal share of a step for requests that are not admitted.
        price: whether capacity is reserved for better work still to arrive.
        correct: whether predicted lengths and futures are corrected by recent outcomes, and
            missing lengths replaced by recent ones.
    """
    view = _prepared(view, correct=correct)
    urgency, calls = urgency_of(view), calls_of(view.requests, view.model)
    programs, arrived = present_programs(view, calls), arrived_programs(view)
    slos_arrived = bool((view.arrivals.kind != BEST_EFFORT).any())
    recent = (view.arrivals, arrived) if slos_arrived else (view.requests, programs)
    mean_tokens = _mean_tokens(*recent)
    arrived_value = arrived.value(view.arrivals, mean_tokens, token_share)
    value = programs.value(view.requests, mean_tokens, token_share)
    if fairness:
        value, arrived_value = _with_fairness(view, programs, value, arrived_value, fairness)
    recent_value = arrived_value if slos_arrived else value
    step = best_duration(view, *recent, recent_value, utilisation=utilisation, only_s=pace)
    begin_step_s = BEGIN_MARGIN * step.expected_s
    has_begun = view.requests.program_tokens[programs.first] > 0
    value *= _can_be_in_time(view, programs, urgency, has_begun, begin_step_s)
    arrived_end_s = view.arrivals.arrival_s + arrived.isolated_latency_s(begin_step_s)
    could_be_in_time = arrived_end_s <= arrived.ends_s
    expected = expected_demand(view, arrived, arrived_value * could_be_in_time, step)
    if not price:
        expected = expected.without_demand()
    demand_s = step.with_fixed_cost(programs.demand_s(view.model))
    due_s = _due_s(programs, urgency, step)
    curves = demand_curves_of(view, calls, programs, demand_s, due_s, step)
    density = value / demand_s
    density[has_begun] *= 1.0 + MIN_GAIN
    admitted_programs, busy_share = admit(curves, density, expected, utilisation=utilisation)
    admitted = admitted_programs[programs.row_of]
    ranks = _ranks(view, urgency, admitted, value[programs.row_of] > 0)
    order = np.lexsort((_call_due_s(calls, programs, due_s, step), ranks))
    least_steps = _held_steps(view, step, could_be_in_time)
    if not pace:
        step = _until_next_plan(
            view,
            step,
            calls,
            programs,
            value * admitted_programs,
            demand_s,
            due_s,
            needed_share=busy_share * step.useful_share / utilisation,
            frame_steps=frame_steps,
        )
    order = order[~to_drop(view, urgency.stay)[order]]
    others = in_spare_time(
        view,
        calls,
        programs,
        order,
        admitted=admitted,
        density=density,
        expected=expected,
        utilisation=utilisation,
        step=step,
    )
    plan = build_plan(
        view,
        calls,
        order,
        admitted=admitted,
        others=others,
        urgency=urgency,
        step=step,
        size=batch or view.slots,
        frame_steps=max(frame_steps, least_steps),
    )
    if fairness:  # it has discounted the value of admitted requests: they are not limited again
        plan = limit_users_ahead(view, plan, unless=admitted)
    return plan._replace(least_steps=min(least_steps, plan.steps))


def _prepared(view: StepView, *, correct: bool) -> StepView:
    """The view with its requests by (arrival, id), which breaks ties, and corrected predictions."""
    requests, arrivals = view.requests.take(sorted_indices(view.requests)), view.arrivals
    if correct:
        requests.length[:], requests.future[:] = _corrected(requests)  # `take` made a copy
        length, future = _corrected(arrivals)
        arrivals = arrivals.with_columns(length=length, future=future)
    requests.future[:] = with_shares(requests)
    arrivals = arrivals.with_columns(future=with_shares(arrivals))
    return view._replace(requests=requests, arrivals=arrivals)


def _corrected(requests: Requests) -> tuple[Floats, Floats]:
    """Lengths and futures times their recent ratio of true to predicted values.

    A missing length is replaced by the user's default length; unknown parts of a future stay
    unknown.

    Returns:
        (n, levels) and (n, parts).
    """
    future = requests.future * requests.future_ratio[:, np.newaxis]
    future = np.where(requests.future < MAX_VALUE, future, requests.future)
    length = requests.length * requests.length_ratio[:, np.newaxis]
    if (is_missing := np.isnan(length[:, 0])).any():
        length[is_missing] = requests.default_length[is_missing]
        length[length[:, -1] == 0.0] = np.nan  # no answer has ended yet
    return length, future


def _with_fairness(
    view: StepView, programs: ProgramDemand, value: Floats, arrived_value: Floats, fairness: float
) -> tuple[Floats, Floats]:
    """The values of present and arrived programs, less what their users' service costs them."""
    users = (view.requests.user_tokens[programs.first], view.arrivals.user_tokens)
    discount = mix_in_fairness(1.0, fair_scores(np.concatenate(users)), fairness)
    return value * discount[: len(value)], arrived_value * discount[len(value) :]


def _mean_tokens(requests: Requests, programs: ProgramDemand) -> float:
    """Mean goodput tokens of the programs that have an SLO: the unit of value for tokens."""
    counts = programs.counts * (requests.kind[programs.first] != BEST_EFFORT)
    total = float(counts.sum())
    return max(float(programs.tokens @ counts) / total, 1.0) if total else 1.0


def _can_be_in_time(
    view: StepView, programs: ProgramDemand, urgency: Urgency, has_begun: Flags, step_s: float
) -> Flags:
    """Whether each program can be in time: (m,).

    Without waiting, with steps of step_s if it has not begun and with the shortest if it has.
    """
    shortest_s = view.model.base_s + view.model.token_s
    begin_s = max(step_s, shortest_s)
    latency_s = programs.isolated_latency_s(np.where(has_begun, shortest_s, begin_s))
    in_time: Flags = view.now_s + latency_s <= programs.ends_s
    return in_time & ~expired(programs, urgency.deadline_class)


def _due_s(programs: ProgramDemand, urgency: Urgency, step: StepDuration) -> Floats:
    """The time from which each program must run without a pause to be in time: (m,).

    For a stream, the due time of its next token.
    """
    last_s = programs.ends_s - programs.isolated_latency_s(step.expected_s)
    return np.where(programs.is_stream, urgency.due_s[programs.first], last_s)


def _call_due_s(calls: Calls, programs: ProgramDemand, due_s: Floats, step: StepDuration) -> Floats:
    """The same for each call: (n,). Only its stage's longest call is due with its program."""
    shorter_by = programs.longest_tokens[programs.row_of] - calls.tokens
    call_due_s: Floats = due_s[programs.row_of] + shorter_by * step.expected_s
    return call_due_s


def _until_next_plan(
    view: StepView,
    step: StepDuration,
    calls: Calls,
    programs: ProgramDemand,
    admitted_value: Floats,
    demand_s: Floats,
    due_s: Floats,
    *,
    needed_share: float,
    frame_steps: int,
) -> StepDuration:
    """The duration of steps until the next plan, which may be shorter for some programs.

    Args:
        needed_share: share of machine time that the admitted and the expected programs need beside
            the fixed cost of steps.
    """
    is_computed = calls.uncomputed[programs.first] == 0
    step = backlog_duration(
        view,
        step,
        programs,
        (admitted_value > 0) & (is_computed | ~programs.is_stream),
        affordable_s=affordable_duration(view, needed_share),
        backlog_s=float(calls.prompt_s.sum()),
        due_s=due_s,
        num_steps=frame_steps,
    )
    return saving_duration(view, step, programs, admitted_value, demand_s)


def _held_steps(view: StepView, step: StepDuration, could_be_in_time: Flags) -> int:
    """Number of steps after which one plan answers all arrivals and ends, at least 1."""
    arrivals = view.arrivals
    is_stream = arrivals.kind == LATENCY
    allowed_s = np.where(is_stream, arrivals.ttft_s, arrivals.final_s - arrivals.arrival_s)
    can_wait_s = HELD_SHARE * allowed_s[could_be_in_time].min(initial=np.inf)
    held_steps = HELD_STEPS + len(view.requests) // CROWD
    return int(max(min(held_steps, can_wait_s / step.step_s), 1.0))


def _ranks(view: StepView, urgency: Urgency, admitted: Flags, has_value: Flags) -> Bytes:
    """The class in which each request is ordered, lowest first: (n,).

    0: admitted; 1: can be in time, or best effort; 2: cannot be in time; 3 and above: late.
    """
    late = urgency.deadline_class > DeadlineClass.FEASIBLE
    rank = np.where(has_value | (view.requests.kind == BEST_EFFORT), 1, 2).astype(np.int8)
    rank[admitted] = 0
    rank[late] = 3 + urgency.deadline_class[late]
    return rank
