"""When requests are due, and whether they can still be in time: shared by every policy.

Every function takes the view and answers for all its requests at once, as an array of length n.
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
"""Deadline given to work without a promise, so that it never starves.

Source: Wu (2025), chapter 3 (best-effort requests get a default completion deadline).
"""


class DeadlineClass(IntEnum):
    """Rank classes: expired work never outranks feasible work, however urgent it looks."""

    FEASIBLE = 0
    LATE = 1  # cannot be in time any more, and still useful to its caller
    LATE_BEST_EFFORT = 2  # cannot be in time any more, and runs in what is left over


class StayLimits(NamedTuple):
    """How long each request may stay, (n,) each; infinity for ever.

    Attributes:
        expiry_s: as the function of that name.
        patience_s: when the patience of who has no place in the cache ends.
    """

    expiry_s: Floats
    patience_s: Floats


class Urgency(NamedTuple):
    """For those who need several of the answers: each is the function's of the same name, (n,).

    Attributes:
        stay: how long each may stay, as `stay_limits_of` has it.
    """

    next_token_due_s: Floats
    due_s: Floats
    deadline_class: Ints
    stay: StayLimits


def stay_limits_of(view: StepView) -> StayLimits:
    """How long each request may stay."""
    requests = view.requests
    ends_s = requests.unscheduled_s + requests.waiting_s
    patience_s = np.where(requests.computed_tokens > 0, math.inf, ends_s)
    return StayLimits(expiry_s(view), patience_s)


def urgency_of(view: StepView) -> Urgency:
    """How urgent each request is."""
    next_s, stay = next_token_due_s(view), stay_limits_of(view)
    stands = _standing(view, next_s, stay)
    return Urgency(next_s, _due_s(view, next_s), stands, stay)


def due_s(view: StepView) -> Floats:
    """The next moment at which each request earns or loses goodput.

    Latency kind: when the next token that can still be in time is due. Compound: its stage's
    sub-deadline while that lies ahead, then the run's own. Best effort: a default deadline.
    Infinity for a latency stream that decodes too slowly ever to catch up.
    """
    return _due_s(view, next_token_due_s(view))


def expiry_s(view: StepView) -> Floats:
    """From when on each request can earn no goodput at all; infinity if it always can."""
    requests = view.requests
    last_token = np.maximum(requests.max_tokens - 1, 0)
    last_s = requests.arrival_s + requests.ttft_s + last_token * requests.tbt_s
    return np.where(requests.kind == LATENCY, last_s, requests.final_s)


def deadline_class(view: StepView) -> Ints:
    """The rank class of each request now, a Standing."""
    return _standing(view, next_token_due_s(view), stay_limits_of(view))


def to_drop(view: StepView, stay: StayLimits) -> Flags:
    """Whose own SLO asks to give it up now: (n,)."""
    gone: Flags = (view.requests.on_late == DROP_LATE) & (view.now_s >= stay.expiry_s)
    gone |= view.now_s >= stay.patience_s
    return gone


def drops(view: StepView, stay: StayLimits) -> tuple[tuple[int, str], ...]:
    """The requests whose own SLO asks to give them up now: each one's place, and why.

    By arrival, then id.
    """
    requests = view.requests
    places = np.flatnonzero(to_drop(view, stay))
    names = dict(zip(places.tolist(), requests.ids(places), strict=True))
    found = []
    for place in sorted(names, key=lambda place: (requests.arrival_s[place], names[place])):
        if view.now_s >= stay.patience_s[place]:
            waited_s = view.now_s - requests.unscheduled_s[place]
            patience_s = requests.waiting_s[place]
            reason = f"unscheduled for {waited_s:.2f} s, slo_waiting_s is {patience_s:g}"
        else:
            past_s = view.now_s - stay.expiry_s[place]
            reason = f"its deadline passed {past_s:.2f} s ago and slo_on_late is drop"
        found.append((place, reason))
    return tuple(found)


def next_change_s(view: StepView, stay: StayLimits) -> Floats:
    """The next moment at which time alone changes each request's standing; infinity if none."""
    changes = np.full(len(view.requests), math.inf)
    for moments in (*stay, view.requests.deadline_s):
        changes = np.minimum(changes, np.where(moments > view.now_s, moments, math.inf))
    return changes


def next_token_due_s(view: StepView) -> Floats:
    """When the first token that can still be in time is due, as if each were a stream.

    Token i is due by TTFT + i * TBT. A stream behind its schedule produces a token every
    `token_s`, while one falls due every TBT, so it catches up at the first index j >= i with
    due(j) >= now + (j - i + 1) * token_s. Infinity where that is beyond its last token.
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
    return np.where(never, math.inf, due)  # infinity means hopeless


def _due_s(view: StepView, next_token_s: Floats) -> Floats:
    requests = view.requests
    due = np.where(requests.deadline_s > view.now_s, requests.deadline_s, requests.final_s)
    default = requests.arrival_s + BEST_EFFORT_DEADLINE_S
    due = np.where(requests.kind == BEST_EFFORT, default, due)
    return np.where(requests.kind == LATENCY, next_token_s, due)


def _standing(view: StepView, next_token_s: Floats, stay: StayLimits) -> Ints:
    requests = view.requests
    hopeless = (requests.kind == LATENCY) & np.isinf(next_token_s)
    feasible = (view.now_s < stay.expiry_s) & ~hopeless
    useful = requests.on_late == CONTINUE_LATE
    late = np.where(useful, int(DeadlineClass.LATE), int(DeadlineClass.LATE_BEST_EFFORT))
    return np.where(feasible, int(DeadlineClass.FEASIBLE), late)
