"""CALM, ours: admit what can be in time together, run first who can wait least.

Where the published formulation (Wu (2025), section 4.2; here `calm_published`) ranks requests by
goodput per second of generation and runs the best of them, this one first asks which programs the
machine can serve in time together, and spends nothing on the others while it is busy.
"""

from __future__ import annotations

import numpy as np

from serving.policies.calm.admission import admit, demands_of, expected, utilisation_of
from serving.policies.calm.plan_builder import planned
from serving.policies.calm.program_demand import (
    Calls,
    ProgramDemand,
    arrived_programs,
    calls_of,
    expired,
    present_programs,
)
from serving.policies.calm.step_duration import (
    LEAST_S,
    StepDuration,
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

BEGIN_MARGIN = 0.55
"""Who has not begun must be in time alone at steps so many times as long as the pace: shorter ones,
as it may turn out shorter than foretold, and steps are shortened for who is a little behind."""

TOKEN_SHARE = 0.6
"""Of a program's worth, what its tokens make. They are further from what could be earned than kept
promises are, and so weigh a little more."""

HELD_SHARE, SOONEST = 0.25, 0.1
"""Without a crowd a plan takes no more than this share of the time in which streams that arrived
lately were promised their first token: of all but the soonest tenth of them."""

CROWD = 128
"""For each so many requests a plan holds for one more step: deciding takes longer the more there
are, and so never more than about the same share of the time."""

LONGEST_HOLD_S = 0.5
"""Nobody who arrives is kept out of all plans for more decode steps than last so long, however many
are here: a pile of late work least of all. Steps that read prompts are longer."""


def calm(
    view: StepView,
    *,
    batch: int = 0,
    utilisation: float = 0.0,
    token_share: float = TOKEN_SHARE,
    pace: float = 0.0,
    margin: float = BEGIN_MARGIN,
    gate: float = MIN_GAIN,
    leftover: float = 0.5,
    frame_steps: int = 10,
    least_steps: int = 4,
    fairness: float = 0.0,
    price: bool = True,
    urgent: bool = True,
    correct: bool = True,
    save: bool = True,
) -> Plan:
    """Admission by value per need, execution by slack, at the pace that is worth most.

    Args:
        batch: how many requests run at once; 0: as many as the engine has slots.
        utilisation: the share of the machine's time that admission gives away; 0: by how uneven
            the needs are of what it is expected to do, and how long that can wait.
        token_share: of a program's worth, what its tokens make; the rest is for a kept promise.
        pace: seconds that a step may take; 0: what is worth most for what arrived lately.
        margin: who has not begun must be in time alone at steps this many times as long as that
            pace, or at the shortest that there are if those are longer.
        gate: who has begun gives way only to what is worth this share more per need: forecasts
            differ from one look to the next by more than equals do, and what was begun is lost.
        leftover: of the time that admission leaves over, the share for those who have a promise
            that will not be kept. Best-effort work has all of it.
        frame_steps: steps between two decisions, unless something arrives or ends.
        least_steps: what arrives or ends within so many steps is gathered; more of them where a
            crowd makes decisions dear (CROWD), fewer where steps are long (LONGEST_HOLD_S).
        fairness: f, how much of its worth the work of the user who was served most loses; above 0,
            who is ahead has no more than an equal share of a step for what is not admitted.
        price: whether room is kept for better work that is still to arrive.
        urgent: whether the admitted run by slack; if not, by worth per need.
        correct: whether lengths and futures are corrected by how the latest turned out, and lengths
            taken from them where none was foretold.
        save: whether steps are shorter for a while to save who is a little behind, or would be by
            work that came at once, if no pace is given.
    """
    view = _prepared(view, correct=correct)
    urgency, calls = urgency_of(view), calls_of(view.requests, view.model)
    programs, arrived = present_programs(view, calls), arrived_programs(view)
    is_telling = bool((view.arrivals.kind != BEST_EFFORT).any())
    recent = (view.arrivals, arrived) if is_telling else (view.requests, programs)
    unit = _mean_tokens(*recent)
    coming = arrived.value(view.arrivals, unit, token_share)
    value = programs.value(view.requests, unit, token_share)
    if fairness:
        users = (view.requests.user_tokens[programs.first], view.arrivals.user_tokens)
        discount = mix_in_fairness(1.0, fair_scores(np.concatenate(users)), fairness)
        value *= discount[: len(value)]
        coming *= discount[len(value) :]
    step = best_duration(view, *recent, coming if is_telling else value, only_s=pace)
    begins_s = margin * step.each_s
    has_begun = view.requests.program_tokens[programs.first] > 0
    value *= _can_be_in_time(view, programs, urgency, has_begun, begins_s)
    timely = view.arrivals.arrival_s + arrived.isolated_latency_s(begins_s) <= arrived.ends_s
    expects = expected(view, arrived, coming * timely, step)
    utilisation = utilisation or utilisation_of(expects, view.arrivals_s)
    if not price:
        expects = expects._replace(by=np.zeros_like(expects.by))
    need_s, due_s = step.of(programs.need_s(view.model)), _due_s(programs, urgency, step)
    demands = demands_of(view, calls, programs, need_s, due_s, step)
    density = value / need_s
    density[has_begun] *= 1.0 + gate
    chosen = admit(demands, density, expects, utilisation=utilisation)
    admitted = chosen.programs[programs.of]
    call_due_s = _call_due_s(calls, programs, due_s, step)
    key = call_due_s if urgent else -density[programs.of]
    waits = _can_wait(view, calls, call_due_s, step)
    order = np.lexsort((key, waits, _ranks(view, urgency, admitted, value[programs.of] > 0)))
    least_steps = _held_steps(view, least_steps, step)
    if save and not pace:
        saved = value * chosen.programs
        is_read = calls.unread[programs.first] == 0
        step = backlog_duration(
            view,
            step,
            programs,
            (saved > 0) & (is_read | ~programs.streams),
            backlog_s=float(calls.prompt_s.sum()),
            due_s=due_s,
            num_steps=frame_steps,
        )
        step = saving_duration(view, step, programs, saved)
    plan = planned(
        view,
        calls,
        order[~to_drop(view, urgency.stay)[order]],
        admitted=admitted,
        urgency=urgency,
        spare=np.where(view.requests.kind == BEST_EFFORT, 1.0, leftover) * chosen.spare,
        given=utilisation,
        step=step,
        size=batch or view.slots,
        frame_steps=max(frame_steps, least_steps),
    )
    plan = plan._replace(least_steps=least_steps)
    # What is admitted has been weighed against the others; it is not held back again.
    return limit_users_ahead(view, plan, unless=admitted) if fairness else plan


def _prepared(view: StepView, *, correct: bool) -> StepView:
    """Requests by (arrival, id), so that ties end in their place; lengths and futures as they were
    lately."""
    requests, arrivals = view.requests.take(sorted_indices(view.requests)), view.arrivals
    if correct:
        requests.length[:], requests.future[:] = _corrected(requests)  # of a copy that is ours
        length, future = _corrected(arrivals)
        arrivals = arrivals.with_columns(length=length, future=future)
    return view._replace(requests=requests, arrivals=arrivals)


def _corrected(requests: Requests) -> tuple[Floats, Floats]:
    """Lengths and futures as those foretold have turned out, lengths as usual where none was:
    (n, levels) and (n, parts). What of a future is left open stays so."""
    future = requests.future * requests.future_ratio[:, np.newaxis]
    future = np.where(requests.future < MAX_VALUE, future, requests.future)
    told = requests.length * requests.length_ratio[:, np.newaxis]
    if (untold := np.isnan(told[:, 0])).any():
        told[untold] = requests.default_length[untold]
        told[told[:, -1] == 0.0] = np.nan  # no answer has ended as yet
    return told, future


def _mean_tokens(requests: Requests, programs: ProgramDemand) -> float:
    """What the worth of tokens is measured in: the mean program that was promised anything."""
    counts = programs.counts * (requests.kind[programs.first] != BEST_EFFORT)
    total = float(counts.sum())
    return max(float(programs.tokens @ counts) / total, 1.0) if total else 1.0


def _can_be_in_time(
    view: StepView, programs: ProgramDemand, urgency: Urgency, has_begun: Flags, step_s: float
) -> Flags:
    """Whether each program can: one that has not begun at steps as long as this, another if it had
    the machine to itself and its answers turned out short."""
    isolated_latency_s = view.model.base_s + view.model.token_s
    takes_s = programs.isolated_latency_s(
        np.where(has_begun, isolated_latency_s, max(step_s, isolated_latency_s))
    )
    in_time: Flags = view.now_s + takes_s <= programs.ends_s
    hoping = has_begun & ~in_time  # who is in time as foretold is so at its least too
    least_latency_s = programs.least_latency_s(view.requests, isolated_latency_s, hoping)
    in_time[hoping] = view.now_s + least_latency_s <= programs.ends_s[hoping]
    return in_time & ~expired(programs, urgency.deadline_class)


def _due_s(programs: ProgramDemand, urgency: Urgency, step: StepDuration) -> Floats:
    """When each program's next token is due: of a stream by its schedule, of another such that it
    would be in time without a pause from then on, (m,)."""
    last_s = programs.ends_s - programs.isolated_latency_s(step.each_s)
    return np.where(programs.streams, urgency.due_s[programs.first], last_s)


def _call_due_s(calls: Calls, programs: ProgramDemand, due_s: Floats, step: StepDuration) -> Floats:
    """The same of each call: the stage's longest has no more time than its program, (n,)."""
    later_s = (programs.longest[programs.of] - calls.tokens) * step.each_s
    later: Floats = due_s[programs.of] + later_s
    return later


def _held_steps(view: StepView, least_steps: int, step: StepDuration) -> int:
    """How many steps gather what arrives and ends, at least 1."""
    ttft_s = view.arrivals.ttft_s[view.arrivals.kind == LATENCY]
    if len(ttft_s):
        place = int(SOONEST * len(ttft_s))
        soon_s = HELD_SHARE * float(np.partition(ttft_s, place)[place])
        least_steps = max(min(least_steps, int(soon_s / step.step_s)), 1)
    within = int(LONGEST_HOLD_S / max(view.token_s, LEAST_S))
    return max(min(least_steps + len(view.requests) // CROWD, within), 1)


def _can_wait(view: StepView, calls: Calls, due_s: Floats, step: StepDuration) -> Flags:
    """Who has not begun, and is in time after all that others have begun to read, (n,): where no
    step is limited nobody is pressed, and who has begun is not displaced for nothing."""
    requests = view.requests
    has_begun = requests.computed_tokens > 0
    own_s = np.where(requests.kind == LATENCY, calls.prompt_s, 0.0)  # a program's is in its due
    read_s = step.of(own_s + calls.prompt_s[has_begun].sum())
    can_wait: Flags = ~has_begun & (view.now_s + read_s < due_s) & (not step.is_limited)
    return can_wait


def _ranks(view: StepView, urgency: Urgency, admitted: Flags, has_worth: Flags) -> Bytes:
    """Classes of execution, lowest first; of those that hold for a request the last counts."""
    late = urgency.deadline_class > DeadlineClass.FEASIBLE
    rank = np.where(has_worth | (view.requests.kind == BEST_EFFORT), 1, 2).astype(np.int8)
    rank[admitted] = 0
    rank[late] = 3 + urgency.deadline_class[late]
    return rank
