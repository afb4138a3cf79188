"""The duration of steps: the one with which the recent arrivals would have had the highest value.

Long steps use the machine best, because each pays its fixed cost for more tokens. Short steps let
streams and long chains of calls be in time. So each candidate duration is tried on the programs of
the last minute, as if they arrived again. Until the next plan, steps may be shorter than that for
programs that would be late otherwise: if all that is admitted still has time, or for more value
than the lost time costs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from serving.policies.calm.program_demand import MIN_S, ProgramDemand
from serving.requests import Flags, Floats, Requests
from serving.view import StepView

BEARABLE_SHARE = 0.9
"""A program is in time with steps of this share of the longest that it can bear, because some steps
take longer than planned. A stream can bear steps of its TBT."""

MAX_SAVED = 64
"""Number of programs that are considered for saving by shorter steps, the least late first."""

LOST_TIME_COST = 3.0
"""Cost of a second of lost machine time, relative to the value that is admitted for each second of
demand: programs that are late by it lose their work so far. With 1, a sudden overload keeps a third
of what it keeps with 3; with 4, alike programs with tight deadlines keep a little less."""

NUM_DURATIONS, SHORTEST_FACTOR = 16, 1.25
"""Number of candidate durations: geometric from this factor times an empty step to a full step."""

MIN_USEFUL_SHARE, ROUNDING = 1e-3, 1e-9

PLANNING_MARGIN = 0.75
"""For the comparison of durations: the factor on the duration with which a program with a deadline
must be in time."""


class StepDuration(NamedTuple):
    """The limit on the duration of steps, and what follows from it.

    Attributes:
        step_s: longest step, in seconds.
        is_limited: whether step_s is below a step that uses the engine's whole token budget.
        expected_s: expected duration of a step: the time to compute what arrives during one step,
            or to decode what is present if that is longer; at most step_s.
        useful_share: share of machine time that such steps leave beside their fixed cost.
        frame_s: the duration of steps in which the requests of a frame must fit: longer than step_s
            if that is short for first tokens, since prompts share what the decodes leave of a step;
            infinity: no limit.
    """

    step_s: float
    is_limited: bool
    expected_s: float
    useful_share: float
    frame_s: float = math.inf

    def with_fixed_cost(self, seconds: Floats) -> Floats:
        """Machine time for work that adds these seconds to steps: seconds / useful_share."""
        return seconds / self.useful_share


def step_duration_of(view: StepView, step_s: float, fullest_s: float = math.inf) -> StepDuration:
    """Steps of this duration, clamped between an empty and a full step.

    If that is a full step, expected_s is the fixed cost.

    Args:
        fullest_s: see `fullest_batch_s`.
    """
    base_s, full_s = view.model.base_s, _full_step_s(view)
    step_s = min(max(step_s, base_s + view.model.token_s, MIN_S), full_s)
    is_limited = step_s < full_s
    lasts_s = min(step_s, fullest_s)
    share = max(1.0 - base_s / lasts_s, MIN_USEFUL_SHARE)
    if not is_limited:
        return StepDuration(step_s, is_limited, base_s, share)
    return StepDuration(step_s, is_limited, lasts_s, share, frame_s=step_s)


def fullest_batch_s(view: StepView, programs: ProgramDemand, has_value: Flags) -> float:
    """The longest that steps can be on average: with a decode in each slot, as far as memory goes.

    The work of these programs is prefill and decodes in a given ratio. Steps beyond this duration
    would have to compute more prefill than arrives: a longer limit leaves no more time for work.
    """
    model = view.model
    tokens = float((programs.decode_tokens * programs.counts)[has_value].sum())
    contexts = float((programs.context_tokens * programs.counts)[has_value].sum())
    decode_s = tokens * (model.token_s + model.sequence_s) + contexts * model.context_s
    total_s = float(programs.demand_s(model)[has_value].sum())
    if decode_s <= 0.0:
        return math.inf
    in_memory = view.kv_tokens * tokens / max(contexts, 1.0)
    decodes = max(min(view.slots, in_memory), 1.0)
    return model.base_s + decodes * (decode_s / tokens) * (total_s / decode_s)


def best_duration(
    view: StepView,
    requests: Requests,
    programs: ProgramDemand,
    value: Floats,
    *,
    utilisation: float,
    only_s: float = 0.0,
) -> StepDuration:
    """The duration with which these programs would have had the highest total value.

    For each duration, the programs that are in time alone are taken by decreasing value / demand
    until the machine time of their arrival window is used up; the last one in part. If all of them
    leave spare time, steps are shorter than the limit anyway, so no limit affects them. Of equally
    good durations the longest is taken, but steps are no longer than is best for first tokens
    (`_quickest_s`) while they compute all that arrives (`_unlimited_s`).

    Args:
        requests: the recent arrivals; the requests of the view if nothing arrived.
        programs: their programs.
        value: of each program, (m,).
        utilisation: share of machine time that is allocated.
        only_s: the only candidate, in seconds; 0: all candidates.
    """
    base_s, full_s = view.model.base_s, _full_step_s(view)
    durations_s = (
        np.array([step_duration_of(view, only_s).step_s])
        if only_s
        else _candidates_s(_shortest_s(view), full_s)
    )
    demand_s = programs.demand_s(view.model)
    fullest_s = fullest_batch_s(view, programs, value > 0)
    capacity_s = utilisation * view.arrivals_s
    values = _values(view, requests, programs, demand_s, value, durations_s, fullest_s, capacity_s)
    best = np.flatnonzero(values >= (1.0 - ROUNDING) * values.max())[-1]
    wanted_s = demand_s[value > 0]
    chosen_s, unlimited_s = float(durations_s[best]), _unlimited_s(view, wanted_s)
    frame_s = step_duration_of(view, chosen_s).frame_s
    if not only_s:
        chosen_s = min(chosen_s, max(_quickest_s(view, programs, value > 0), unlimited_s))
    step = step_duration_of(view, chosen_s, fullest_s)
    lasts_s = step.expected_s if step.is_limited else step.step_s
    expected_s = max(min(max(unlimited_s, _present_step_s(view)), lasts_s), base_s)
    return step._replace(expected_s=expected_s, frame_s=frame_s)


def affordable_duration(view: StepView, useful_share: float) -> float:
    """The shortest candidate that leaves this share of machine time beside the fixed cost.

    Infinity if none does.
    """
    if useful_share >= 1.0:
        return math.inf
    return max(view.model.base_s / (1.0 - useful_share), _shortest_s(view))


def backlog_duration(
    view: StepView,
    step: StepDuration,
    programs: ProgramDemand,
    candidates: Flags,
    *,
    affordable_s: float,
    backlog_s: float,
    due_s: Floats,
    num_steps: int,
) -> StepDuration:
    """The duration until the next plan: not longer than a backlog of prompts allows.

    Prompts that arrive together, or best-effort work, fill whole steps until they are computed,
    even if the mean load is low. Programs that would be late by that get shorter steps, if these
    are affordable: streams that are not ahead of their schedule, and other programs that cannot
    bear full steps for the whole backlog.

    Args:
        candidates: the programs that may get shorter steps, (m,).
        affordable_s: the shortest steps with which there is time for all that is admitted.
        backlog_s: seconds that the prefill of all present prompts adds to steps.
        due_s: due time of each program's next token, (m,); used for streams.
        num_steps: validity of the plan in steps.
    """
    if not candidates.any():
        return step
    tbt_s = view.requests.tbt_s[programs.first]
    ahead_s = np.maximum(due_s - view.now_s - tbt_s, 0.0)
    left_s, serial = programs.ends_s - view.now_s - programs.fixed_s, programs.serial_tokens
    backlog_time_s = backlog_s / step.useful_share
    needed_s = backlog_time_s + (serial - backlog_time_s / step.step_s) * step.expected_s
    is_late = left_s < np.minimum(needed_s, serial * step.step_s)
    bearable_s = np.where(
        programs.is_stream,
        BEARABLE_SHARE * (tbt_s + ahead_s / num_steps),
        BEARABLE_SHARE * left_s / np.maximum(serial, 1.0),
    )
    limiting = candidates & (programs.is_stream | is_late) & (bearable_s >= affordable_s)
    limit_s = float(bearable_s[limiting].min(initial=np.inf))
    if limit_s >= step.step_s:
        return step
    expected_s = min(step.expected_s, limit_s)
    return step._replace(step_s=limit_s, is_limited=True, expected_s=expected_s, frame_s=limit_s)


def saving_duration(
    view: StepView, step: StepDuration, programs: ProgramDemand, value: Floats, demand_s: Floats
) -> StepDuration:
    """The duration until the next plan: shorter if that saves programs of more value than it costs.

    A program that is behind can still be in time with steps of at most its time left / its decode
    steps. Until its end, each additional step costs the machine one fixed cost.

    Args:
        step: the duration with which they are late.
        value: of each program that may be saved, (m,); 0 for the others.
        demand_s: machine time of each program, (m,).
    """
    left_s = programs.ends_s - view.now_s
    decode_s = left_s - programs.fixed_s
    bearable_s = BEARABLE_SHARE * decode_s / np.maximum(programs.serial_tokens, 1.0)
    shortest_s = max(view.model.base_s + view.model.token_s, MIN_S)
    is_behind = (bearable_s < step.expected_s) & (bearable_s >= shortest_s) & (value > 0)
    behind = np.flatnonzero(is_behind)
    if not len(behind):
        return step
    behind = behind[np.argsort(-bearable_s[behind], kind="stable")][:MAX_SAVED]
    bearable_s, left_s = bearable_s[behind], left_s[behind]
    more_per_s = 1.0 / bearable_s - 1.0 / step.expected_s
    times_s = np.sort(left_s)
    # Row k: additional steps per second until each time, if the first k + 1 programs are saved.
    additional = np.maximum.accumulate(more_per_s[:, None] * (left_s[:, None] >= times_s))
    more_steps = additional @ np.diff(times_s, prepend=0.0)
    lost_per_s = LOST_TIME_COST * float(value.sum() / demand_s[value > 0].sum())
    gain = np.cumsum(value[behind]) - lost_per_s * view.model.base_s * more_steps
    best = int(np.argmax(gain))
    return step_duration_of(view, float(bearable_s[best])) if gain[best] > 0 else step


@lru_cache(maxsize=8)
def _candidates_s(shortest_s: float, full_s: float) -> Floats:
    """The candidate durations; cached, because the fitted step model rarely changes."""
    durations_s = np.geomspace(np.clip(shortest_s, MIN_S, full_s), full_s, NUM_DURATIONS)
    durations_s.flags.writeable = False
    return durations_s


def _values(
    view: StepView,
    requests: Requests,
    programs: ProgramDemand,
    demand_s: Floats,
    value: Floats,
    durations_s: Floats,
    fullest_s: float,
    capacity_s: float,
) -> Floats:
    """The total value of the served programs with each duration: (durations,).

    Args:
        capacity_s: machine time that is allocated in the window of the arrivals.
    """
    rows = programs.first
    order = np.flatnonzero(value > 0)
    unlimited_s = _unlimited_s(view, demand_s[order])
    lasts_s = np.minimum(durations_s, unlimited_s)
    order = order[np.argsort(-value[order] / demand_s[order], kind="stable")]
    demand_s, value = demand_s[order], value[order]
    have_arrived = requests is view.arrivals
    begins_s = requests.arrival_s[rows] if have_arrived else view.now_s
    allowed_s = programs.ends_s - begins_s - programs.fixed_s
    serial = np.maximum(programs.serial_tokens, 1.0)
    # A stream that begins at once is ahead of its schedule by its TTFT, less its prefill.
    ahead_s = np.maximum(requests.ttft_s[rows] - programs.fixed_s, 0.0) if have_arrived else 0.0
    # A call waits for the end of the step in progress.
    bearable_s = np.where(
        programs.is_stream,
        BEARABLE_SHARE * (requests.tbt_s[rows] + ahead_s / serial),
        allowed_s / (PLANNING_MARGIN * serial + 1.0),
    )
    in_time = bearable_s[order] >= lasts_s[:, None]
    useful_share = 1.0 - view.model.base_s / np.minimum(durations_s, fullest_s)
    values: Floats = _served(in_time, demand_s, capacity_s * useful_share) @ value
    return values


def _served(in_time: Flags, demand_s: Floats, capacity_s: Floats) -> Floats:
    """The served share of each program if those in time are served in order: (durations, m).

    Args:
        in_time: (durations, m).
        demand_s: of each program, (m,).
        capacity_s: machine time with each duration, (durations,).
    """
    wanted_s = in_time * demand_s
    served = np.cumsum(wanted_s, axis=1)  # the only large buffer: all later results reuse it
    served -= wanted_s
    np.subtract(capacity_s[:, None], served, out=served)
    served /= demand_s
    np.clip(served, 0.0, 1.0, out=served)
    served *= in_time
    return served


def _quickest_s(view: StepView, programs: ProgramDemand, has_value: Flags) -> float:
    """The duration of steps with which streams begin soonest; infinity without streams.

    A prompt waits for half a step on average. Its w seconds of prefill then have the share of the
    machine that the fixed cost of b seconds and the load of decodes, rho, leave:

        d / 2 + w / (1 - b / d - rho), which is least for d = (b + sqrt(2 * w * b)) / (1 - rho)
    """
    streams = has_value & programs.is_stream
    decode_s = programs.demand_s(view.model) - programs.prompts_s * programs.counts
    decode_load = float(decode_s[has_value].sum()) / view.arrivals_s
    if not streams.any() or decode_load >= 1.0:
        return math.inf
    prompt_s = np.average(programs.first_prompts_s[streams], weights=programs.counts[streams])
    base_s = view.model.base_s
    return (base_s + math.sqrt(2.0 * prompt_s * base_s)) / (1.0 - decode_load)


def _unlimited_s(view: StepView, demand_s: Floats) -> float:
    """Duration of steps without a limit: each computes what arrived during the one before."""
    load = float(demand_s.sum()) / view.arrivals_s
    return view.model.base_s / max(1.0 - load, MIN_USEFUL_SHARE)


def _present_step_s(view: StepView) -> float:
    """Seconds of a step in which as many of the present requests decode as have a slot."""
    requests = view.requests
    num_decodes = min(len(requests), view.slots)
    contexts = requests.prompt_tokens + requests.output_tokens
    return view.model.seconds(
        new_tokens=num_decodes,
        num_decodes=num_decodes,
        decode_context_tokens=num_decodes * float(contexts.sum()) / max(len(requests), 1),
    )


def _shortest_s(view: StepView) -> float:
    """Seconds of the shortest candidate."""
    return SHORTEST_FACTOR * (view.model.base_s + view.model.token_s)


def _full_step_s(view: StepView) -> float:
    """Seconds of a step that uses the engine's whole token budget."""
    return max(view.model.base_s + view.step_tokens * view.prefill_token_s, MIN_S)
