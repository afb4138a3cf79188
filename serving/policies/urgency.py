"""When a request is due, and whether it can still be in time: shared by every policy."""

from __future__ import annotations

import math
import sys
from enum import IntEnum

from serving.slo import OnLate, SloKind
from serving.view import RequestView, StepView

BEST_EFFORT_DEADLINE_S = 60.0
"""Deadline given to work without a promise, so that it never starves.

Source: Wu (2025), chapter 3 (best-effort requests get a default completion deadline).
"""


class Standing(IntEnum):
    """Rank classes: expired work never outranks feasible work, however urgent it looks."""

    FEASIBLE = 0
    LATE = 1  # cannot be in time any more, and still useful to its caller
    LATE_BEST_EFFORT = 2  # cannot be in time any more, and runs in what is left over


def due_s(request: RequestView, view: StepView) -> float:
    """The next moment at which this request earns or loses goodput.

    Latency kind: when the next token that can still be in time is due. Compound: its stage's
    sub-deadline while that lies ahead, then the run's own. Best effort: a default deadline.
    Infinity for a latency stream that decodes too slowly ever to catch up.
    """
    kind = request.slo.kind
    if kind is SloKind.LATENCY:
        return _next_token_due_s(request, view)
    if kind is SloKind.BEST_EFFORT:
        return request.arrival_s + BEST_EFFORT_DEADLINE_S
    if request.deadline_s > view.now_s:
        return request.deadline_s
    return request.final_s


def expiry_s(request: RequestView) -> float:
    """From when on the request can earn no goodput at all; infinity if it always can."""
    slo = request.slo
    if slo.kind is SloKind.LATENCY:
        return request.arrival_s + slo.ttft_s + max(request.max_tokens - 1, 0) * slo.tbt_s
    return request.final_s


def standing(request: RequestView, view: StepView) -> Standing:
    """The rank class of a request now."""
    if view.now_s < expiry_s(request) and not math.isinf(_stream_due_s(request, view)):
        return Standing.FEASIBLE
    if request.slo.on_late is OnLate.CONTINUE:
        return Standing.LATE
    return Standing.LATE_BEST_EFFORT


def drop_reason(request: RequestView, now_s: float) -> str | None:
    """Why the request's own SLO asks to drop it now; None while it does not."""
    slo = request.slo
    if now_s >= _patience_ends_s(request):
        waited_s = now_s - request.unscheduled_s
        return f"unscheduled for {waited_s:.2f} s, slo_waiting_s is {slo.waiting_s:g}"
    if slo.on_late is OnLate.DROP and now_s >= expiry_s(request):
        return f"its deadline passed {now_s - expiry_s(request):.2f} s ago and slo_on_late is drop"
    return None


def next_change_s(request: RequestView, now_s: float) -> float:
    """The next moment at which time alone changes this request's standing; infinity if none."""
    moments = (expiry_s(request), request.deadline_s, _patience_ends_s(request))
    return min((moment for moment in moments if moment > now_s), default=math.inf)


def _patience_ends_s(request: RequestView) -> float:
    if request.slo.waiting_s is None or request.computed_tokens:
        return math.inf
    return request.unscheduled_s + request.slo.waiting_s


def _stream_due_s(request: RequestView, view: StepView) -> float:
    return _next_token_due_s(request, view) if request.slo.kind is SloKind.LATENCY else 0.0


def _next_token_due_s(request: RequestView, view: StepView) -> float:
    """When the first token that can still be in time is due: token i by TTFT + i * TBT.

    A stream behind its schedule produces a token every `token_s`, while a token falls due every
    TBT, so it catches up at the first index j >= i with due(j) >= now + (j - i + 1) * token_s.
    """
    slo = request.slo
    index = request.output_tokens
    start_s = request.arrival_s + slo.ttft_s
    behind_s = view.now_s + view.token_s - (start_s + index * slo.tbt_s)
    if behind_s > 0:
        gain_s = slo.tbt_s - view.token_s
        if gain_s <= 0:
            return math.inf
        index += math.ceil(behind_s / gain_s)
        if index >= request.max_tokens:
            return math.inf
    return min(start_s + index * slo.tbt_s, sys.float_info.max)  # infinity means hopeless
