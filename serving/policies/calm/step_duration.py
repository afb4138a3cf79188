"""How long a step may take: the pace at which what arrived lately would have been worth most.

Long steps use the machine best, since each pays its fixed cost for more tokens; short ones let
streams and long chains of calls be in time. Neither is right for all work: so each pace is tried on
the programs of the last minute, as if they came again. Steps are shorter for a while where that
saves who is a little behind.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from serving.policies.calm.program_demand import ProgramDemand
from serving.requests import Flags, Floats, Requests
from serving.view import StepView

TBT_SHARE = 0.9
"""A step may take this share of the promised time between two tokens."""

NUM_PACES, SHORTEST = 16, 1.25
"""So many paces are tried, from this many times what a step costs anyway to that of a full step."""

LEAST_S, LEAST_SHARE, ROUNDING = 1e-6, 1e-3, 1e-9

SAVING_SHARE, MOST_SAVED = 0.95, 64
"""Who is behind is saved by steps of this share of what it bears, as some last longer; and so many
are tried together, those that are least behind."""

LOSS_OF_TIME = 4.0
"""A second without work costs so many times what is earned in one: what was to run then may be late
too, and what it had before is lost. With 1, promises half as long keep a fifth fewer tokens."""

UTILISATION, MARGIN = 0.85, 0.75
"""While paces are compared, so much of the machine's time is given away at each, and who has a
deadline must be in time at steps this many times as long."""


AT_EASE = 0.75
"""And where what arrived fits into that share, steps that no pace limits are taken to last so much
of what is foretold: a machine that has time to spare is not limited for forecasts too high."""


class StepDuration(NamedTuple):
    """How long steps are.

    Attributes:
        step_s: seconds that a step may take.
        is_limited: whether that is less than what the engine's own token budget allows.
        each_s: seconds that a step is taken to last: the limit, or else as long as what came in one
            before it makes it.
        share: of the machine's time, what such steps leave beside their fixed cost.
        worth_per_s: what a second of the machine earns at it, by what arrived lately.
        affords_s: the shortest steps, of those that are tried, that would leave room for all that
            arrived lately; infinity if there are none.
    """

    step_s: float
    is_limited: bool
    each_s: float
    share: float
    value_per_s: float = 0.0
    affords_s: float = math.inf

    def of(self, seconds: Floats) -> Floats:
        """Seconds of the machine for what adds so many to its steps."""
        return seconds / self.share


def step_duration_of(view: StepView, step_s: float) -> StepDuration:
    """The pace of steps that take so long: no less than one costs, no more than the longest.

    Where that limits nothing, a step is taken to last its fixed cost.
    """
    base_s, longest_s = view.model.base_s, _longest_s(view)
    step_s = min(max(step_s, base_s + view.model.token_s), longest_s)
    is_limited = step_s < longest_s
    share = max(1.0 - base_s / step_s, LEAST_SHARE)
    return StepDuration(step_s, is_limited, step_s if is_limited else base_s, share)


def best_duration(
    view: StepView,
    requests: Requests,
    programs: ProgramDemand,
    value: Floats,
    *,
    only_s: float = 0.0,
) -> StepDuration:
    """The pace at which these programs would have earned most.

    At each pace those that are in time alone are taken by worth per second of need, until the time
    in which they arrived is used up; the last one in part. Where all of them leave the machine time
    to spare, its steps are shorter than they may be, and the pace limits none of them. Of equal
    paces the longest.

    Args:
        requests: the arrivals; or those of the view, if none arrived lately.
        worth: of each program, (m,).
        only_s: the one pace to try, in seconds of a step; 0: any.
    """
    shortest_s, longest_s = SHORTEST * (view.model.base_s + view.model.token_s), _longest_s(view)
    paces = (
        np.array([step_duration_of(view, only_s).step_s])
        if only_s
        else _paces(shortest_s, longest_s)
    )
    need_s = programs.need_s(view.model)
    values = _values(view, requests, programs, need_s, value, paces)
    best = np.flatnonzero(values >= (1.0 - ROUNDING) * values.max())[-1]
    found = step_duration_of(view, float(paces[best]))
    each_s = found.each_s
    wanted_s = need_s[value > 0]
    if not found.is_limited:
        each_s = max(min(_unlimited_s(view, wanted_s), found.step_s), each_s)
    left = 1.0 - float(wanted_s.sum()) / (UTILISATION * view.arrivals_s)
    return found._replace(
        each_s=each_s,
        value_per_s=float(values[best]) / view.arrivals_s,
        affords_s=max(view.model.base_s / left, shortest_s) if left > 0 else math.inf,
    )


def backlog_duration(
    view: StepView,
    step: StepDuration,
    programs: ProgramDemand,
    pressed: Flags,
    *,
    backlog_s: float,
    due_s: Floats,
    num_steps: int,
) -> StepDuration:
    """The pace until the next plan where none is limited: such that no backlog makes others late.

    However little arrives in a minute, prompts that came at once fill the steps until they are
    read, and so does work without a promise. Who would be late by that has shorter steps, as far as
    they leave room for what arrived lately: a stream that is not ahead of its schedule, and another
    if it could not bear full steps for so long.

    Args:
        pressed: the programs that may have them, (m,).
        backlog_s: what reading all prompts that are here adds to steps.
        due_s: when each program's next token is due, (m,); asked of streams.
        num_steps: how many steps the plan is for.
    """
    if step.is_limited or not pressed.any():
        return step
    tbt_s = view.requests.tbt_s[programs.first]
    ahead_s = np.maximum(due_s - view.now_s - tbt_s, 0.0)
    left_s, serial = programs.ends_s - view.now_s - programs.fixed_s, programs.serial
    full_s = backlog_s / step.share
    takes_s = full_s + (serial - full_s / step.step_s) * step.each_s
    is_late = left_s < np.minimum(takes_s, serial * step.step_s)
    bears_s = np.where(
        programs.streams,
        TBT_SHARE * (tbt_s + ahead_s / num_steps),
        SAVING_SHARE * left_s / np.maximum(serial, 1.0),
    )
    pressed = pressed & (programs.streams | is_late) & (bears_s >= step.affords_s)
    limit_s = float(bears_s[pressed].min(initial=np.inf))
    if limit_s >= step.step_s:
        return step
    return step._replace(step_s=limit_s, is_limited=True, each_s=min(step.each_s, limit_s))


def saving_duration(
    view: StepView, step: StepDuration, programs: ProgramDemand, value: Floats
) -> StepDuration:
    """The pace until the next plan: shorter where who is behind is worth what that costs.

    Who is behind bears steps that let all its tokens come by its end. Until then each of the steps
    that come in addition costs the machine its fixed cost, a time without work.

    Args:
        step: the pace at which they are behind.
        worth: of each program that may be saved, (m,); 0 of the others.
    """
    left_s = programs.ends_s - view.now_s
    bears_s = SAVING_SHARE * (left_s - programs.fixed_s) / np.maximum(programs.serial, 1.0)
    shortest_s = max(view.model.base_s + view.model.token_s, LEAST_S)
    behind = np.flatnonzero((bears_s < step.each_s) & (bears_s >= shortest_s) & (value > 0))
    if not len(behind):
        return step
    behind = behind[np.argsort(-bears_s[behind], kind="stable")][:MOST_SAVED]
    bears_s, left_s = bears_s[behind], left_s[behind]
    more_per_s = 1.0 / bears_s - 1.0 / step.each_s
    moments_s = np.sort(left_s)
    # Each row: what the first so many of them ask for until each moment, as long as they are there.
    asked = np.maximum.accumulate(more_per_s[:, None] * (left_s[:, None] >= moments_s))
    more_steps = asked @ np.diff(moments_s, prepend=0.0)
    lost_per_s = LOSS_OF_TIME * step.value_per_s
    saved = np.cumsum(value[behind]) - lost_per_s * view.model.base_s * more_steps
    best = int(np.argmax(saved))
    return step_duration_of(view, float(bears_s[best])) if saved[best] > 0 else step


@lru_cache(maxsize=8)
def _paces(shortest_s: float, longest_s: float) -> Floats:
    """The same until the model of a step is measured anew, which is seldom."""
    paces = np.geomspace(np.clip(shortest_s, LEAST_S, longest_s), longest_s, NUM_PACES)
    paces.flags.writeable = False
    return paces


def _values(
    view: StepView,
    requests: Requests,
    programs: ProgramDemand,
    need_s: Floats,
    value: Floats,
    paces: Floats,
) -> Floats:
    """What would have been earned at each pace."""
    rows = programs.first
    order = np.flatnonzero(value > 0)
    is_at_ease = need_s[order].sum() <= UTILISATION * view.arrivals_s
    unlimited_s = (AT_EASE if is_at_ease else 1.0) * _unlimited_s(view, need_s[order])
    lasts_s = np.minimum(paces, unlimited_s)
    order = order[np.argsort(-value[order] / need_s[order], kind="stable")]
    need_s, value = need_s[order], value[order]
    is_new = requests is view.arrivals
    begins_s = requests.arrival_s[rows] if is_new else view.now_s
    allowed_s = programs.ends_s - begins_s - programs.fixed_s
    serial = np.maximum(programs.serial, 1.0)
    # A stream that begins at once is ahead of its schedule by its first token's time.
    ahead_s = np.maximum(requests.ttft_s[rows] - programs.fixed_s, 0.0) if is_new else 0.0
    bearable_s = np.where(
        programs.streams,
        TBT_SHARE * (requests.tbt_s[rows] + ahead_s / serial),
        allowed_s / (MARGIN * serial),
    )
    in_time = bearable_s[order] >= lasts_s[:, None]
    room_s = UTILISATION * view.arrivals_s * (1.0 - view.model.base_s / paces)
    values: Floats = _served(in_time, need_s, room_s) @ value
    return values


def _served(in_time: Flags, need_s: Floats, room_s: Floats) -> Floats:
    """Which part of each program is served if those in time are taken in their order.

    Args:
        in_time: (paces, m).
        need_s, room_s: of each program, (m,), and at each pace, (paces,).
    """
    wanted_s = in_time * need_s
    served = np.cumsum(wanted_s, axis=1)  # of this one buffer all the rest is made
    served -= wanted_s
    np.subtract(room_s[:, None], served, out=served)
    served /= need_s
    np.clip(served, 0.0, 1.0, out=served)
    served *= in_time
    return served


def _unlimited_s(view: StepView, need_s: Floats) -> float:
    """How long steps are that wait for nothing: each holds what came during the one before."""
    busy = float(need_s.sum()) / view.arrivals_s
    return view.model.base_s / max(1.0 - busy, LEAST_SHARE)


def _longest_s(view: StepView) -> float:
    """Seconds of a step that uses all of the engine's own token budget."""
    return max(view.model.base_s + view.step_tokens * view.prefill_token_s, LEAST_S)
