"""When requests are due, and whether they can still be in time: shared by every policy.

Every function takes the view and returns an array with one value per request, (n,).
"""

from __future__ import annotations

import math
import sys
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from serving.requests import BEST_EFFORT, CONTINUE_LATE, DROP_LATE, LATENCY, Flags, Floats, Ints
from serving.view import StepView

BEST_EFFORT_DEADLINE_S = 60.0
"""Default deadline of best-effort work, in seconds from its arrival, so that it never starves.
Source: Wu (2025), chapter 3 (best-effort requests get a default completion deadline).
"""


class DeadlineClass(IntEnum):
    """Ranks of requests by deadline: expired work never outranks feasible work."""

    FEASIBLE = 0
    LATE = 1  # can no longer be in time; slo_on_late is continue
    LATE_BEST_EFFORT = 2  # can no longer be in time; slo_on_late is best_effort or drop


class StayLimits(NamedTuple):
    """Times that limit how long each request stays in the engine, (n,) each; infinity: no limit.

    Attributes:
        expiry_s: the result of `expiry_s`.
        patience_s: when the request has been unscheduled for slo_waiting_s; infinity for a request
            that holds KV cache.
    """

    expiry_s: Floats
    patience_s: Floats


class Urgency(NamedTuple):
    """The results of the functions of the same names, (n,) each, for policies that need several.

    Attributes:
        stay: the result of `stay_limits_of`.
    """

    next_token_due_s: Floats
    due_s: Floats
    deadline_class: Ints
    stay: StayLimits


def stay_limits_of(view: StepView) -> StayLimits:
    """When each request expires, and when it has waited as long as its SLO allows."""
    requests = view.requests
    ends_s = requests.unscheduled_s + requests.waiting_s
    patience_s = np.where(requests.computed_tokens > 0, math.inf, ends_s)
    return StayLimits(expiry_s(view), patience_s)


def urgency_of(view: StepView) -> Urgency:
    """Due times, deadline classes and stay limits of all requests."""
    next_s, stay = next_token_due_s(view), stay_limits_of(view)
    return Urgency(next_s, _due_s(view, next_s), _deadline_class(view, next_s, stay), stay)


def due_s(view: StepView) -> Floats:
    """The next time at which each request earns or loses goodput.

    Latency kind: the due time of the next token that can still be in time; infinity for a stream
    that decodes too slowly to catch up. Compound: the stage's sub-deadline until it has passed,
    then the run's deadline. Best effort: the default deadline.
    """
    return _due_s(view, next_token_due_s(view))


def expiry_s(view: StepView) -> Floats:
    """When each request can no longer earn goodput; infinity if it always can."""
    requests = view.requests
    last_token = np.maximum(requests.max_tokens - 1, 0)
    last_s = requests.arrival_s + requests.ttft_s + last_token * requests.tbt_s
    return np.where(requests.kind == LATENCY, last_s, requests.final_s)


def deadline_class(view: StepView) -> Ints:
    """The DeadlineClass of each request now."""
    return _deadline_class(view, next_token_due_s(view), stay_limits_of(view))


def to_drop(view: StepView, stay: StayLimits) -> Flags:
    """Whether the SLO of each request asks to drop it now: (n,)."""
    dropped: Flags = (view.requests.on_late == DROP_LATE) & (view.now_s >= stay.expiry_s)
    dropped |= view.now_s >= stay.patience_s
    return dropped


def drops(view: StepView, stay: StayLimits) -> tuple[tuple[int, str], ...]:
    """(index, reason) of each request that its SLO asks to drop now, by arrival, then id."""
    requests = view.requests
    indices = np.flatnonzero(to_drop(view, stay))
    ids = dict(zip(indices.tolist(), requests.ids(indices), strict=True))
    dropped = []
    for index in sorted(ids, key=lambda index: (requests.arrival_s[index], ids[index])):
        if view.now_s >= stay.patience_s[index]:
            waited_s = view.now_s - requests.unscheduled_s[index]
            patience_s = requests.waiting_s[index]
            reason = f"unscheduled for {waited_s:.2f} s, slo_waiting_s is {patience_s:g}"
        else:
            past_s = view.now_s - stay.expiry_s[index]
            reason = f"its deadline passed {past_s:.2f} s ago and slo_on_late is drop"
        dropped.append((index, reason))
    return tuple(dropped)


def next_change_s(view: StepView, stay: StayLimits) -> Floats:
    """The earliest future time of each request's stay limits and deadline; infinity if none.

    Until then neither its deadline class nor the SLO's wish to drop it changes with time alone.
    """
    changes = np.full(len(view.requests), math.inf)
    for moments in (*stay, view.requests.deadline_s):
        changes = np.minimum(changes, np.where(moments > view.now_s, moments, math.inf))
    return changes


def next_token_due_s(view: StepView) -> Floats:
    """Due time of the first token that can still be in time, treating each request as a stream.

    Token i is due at arrival + TTFT + i * TBT. A stream behind its schedule produces a token every
    `token_s`, while one becomes due every TBT. So it catches up at the first index j >= i with
    due(j) >= now + (j - i + 1) * token_s; infinity if j is beyond its last token.
    """
    requests = view.requests
    start_s = requests.arrival_s + requests.ttft_s
    index = requests.output_tokens.astype(np.float64)
    behind_s = view.now_s + view.token_s - (start_s + index * requests.tbt_s)
    gain_s = requests.tbt_s - view.token_s
    behind = behind_s > 0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        index += np.where(behind, np.ceil(behind_s / gain_s), 0.0)
        due = np.minimum(start_s + index * requests.tbt_s, sys.float_info.max)
    never = (behind & (gain_s <= 0)) | (index >= requests.max_tokens)
    return np.where(never, math.inf, due)


def _due_s(view: StepView, next_token_s: Floats) -> Floats:
    requests = view.requests
    due = np.where(requests.deadline_s > view.now_s, requests.deadline_s, requests.final_s)
    default = requests.arrival_s + BEST_EFFORT_DEADLINE_S
    due = np.where(requests.kind == BEST_EFFORT, default, due)
    return np.where(requests.kind == LATENCY, next_token_s, due)


def _deadline_class(view: StepView, next_token_s: Floats, stay: StayLimits) -> Ints:
    requests = view.requests
    hopeless = (requests.kind == LATENCY) & np.isinf(next_token_s)
    feasible = (view.now_s < stay.expiry_s) & ~hopeless
    useful = requests.on_late == CONTINUE_LATE
    late = np.where(useful, int(DeadlineClass.LATE), int(DeadlineClass.LATE_BEST_EFFORT))
    return np.where(feasible, int(DeadlineClass.FEASIBLE), late)
