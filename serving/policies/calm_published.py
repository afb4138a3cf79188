"""CALM to the letter of the thesis: the published baseline that ours must beat.

Source: Wu (2025), section 4.2 and algorithm 4.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from serving.policies.ranking import drops, plan_of
from serving.policies.urgency import Standing, expiry_s, standing
from serving.slo import SloKind
from serving.view import Plan, RequestState, RequestView, StepView

MIN_GAIN = 0.1
"""A batch is exchanged only for one that is better by more than this share (section 4.2)."""


class Ranked(NamedTuple):
    """A request with its margin goodput per second of generation (equation 4.1)."""

    request: RequestView
    priority: float


def calm_published(
    view: StepView,
    *,
    batch: int = 0,
    cutoff: float = 0.95,
    frame_steps: int = 50,
    starvation_tokens: float = 1.0,
    level: float = 0.9,
) -> Plan:
    """Grouped margin goodput maximisation over frames of decode steps.

    One departure: the starvation constant lifts a request among its equals only. Expired work
    takes the slots that feasible work leaves, or it would outrank small feasible requests.

    Args:
        batch: B, how many requests run at once; 0: as many as the engine has slots.
        cutoff: p in (0, 1]; candidates have at least p times the B-th highest priority.
        frame_steps: decode steps between two decisions, unless something arrives or ends.
        starvation_tokens: delta, goodput added for each frame that a request has waited.
        level: the quantile that bounds remaining output lengths.
    """
    size = batch or view.slots
    dropped = drops(view)
    gone = {request_id for request_id, _ in dropped}
    kept = [request for request in view.requests if request.request_id not in gone]
    need_s = generation_seconds(kept, view, level)
    frame_s = frame_steps * view.token_s

    def priority(request: RequestView) -> float:
        seconds = need_s[request.request_id]
        waited_frames = (view.now_s - request.unscheduled_s) / frame_s
        reward = feasible_goodput(request, view, seconds, level)
        return (reward + starvation_tokens * max(waited_frames, 0.0)) / seconds

    everyone = sorted((Ranked(request, priority(request)) for request in kept), key=_best_first)
    ranked, late = _split_by_standing(everyone, view)
    group = keep_running_unless_better(view, ranked, best_window(ranked, size, cutoff), frame_s)
    chosen = {item.request.request_id for item in group}
    rest = [item for item in ranked if item.request.request_id not in chosen]
    # While `rest` holds anybody, the group fills every slot.
    room = size - len(group)
    group, rest = group + late[:room], rest + late[room:]
    preempt = frozenset(
        item.request.request_id for item in rest if item.request.state is RequestState.RUNNING
    )
    plan = plan_of(
        view,
        (item.request for item in [*group, *rest]),
        (item.request for item in group),
        dropped,
    )
    return plan._replace(preempt=preempt, steps=frame_steps)


def generation_seconds(
    requests: Sequence[RequestView], view: StepView, level: float
) -> Mapping[str, float]:
    """t_gen: remaining length bound times measured token time; a stage's slowest call governs."""
    slowest: dict[tuple[str, int], float] = defaultdict(float)
    own = {r.request_id: r.remaining_tokens(level) * view.token_s for r in requests}
    for request in requests:
        key = _stage(request)
        slowest[key] = max(slowest[key], own[request.request_id])
    return {
        r.request_id: slowest[_stage(r)] if r.slo.kind is SloKind.COMPOUND else own[r.request_id]
        for r in requests
    }


def feasible_goodput(request: RequestView, view: StepView, seconds: float, level: float) -> float:
    """Tokens that count if the request runs from now on; 0 once it cannot be in time.

    Latency kind: the tokens still to come. Deadline and compound: input and output together,
    all or nothing. Best effort: its output, as if its default deadline were always ahead.
    """
    to_come = request.remaining_tokens(level)
    kind = request.slo.kind
    if kind is SloKind.LATENCY:
        reward = to_come if view.now_s < expiry_s(request) else 0.0
    elif kind is SloKind.BEST_EFFORT:
        reward = to_come
    else:
        feasible = view.now_s + seconds <= expiry_s(request)
        reward = request.prompt_tokens + request.output_tokens + to_come if feasible else 0.0
    return reward * request.slo.weight


def best_window(ranked: Sequence[Ranked], size: int, cutoff: float) -> list[Ranked]:
    """The `size` candidates of similar input length with the largest sum of priorities."""
    if len(ranked) <= size:
        return list(ranked)
    threshold = cutoff * ranked[size - 1].priority
    candidates = sorted(
        (item for item in ranked if item.priority >= threshold),
        key=lambda item: (item.request.prompt_tokens, item.request.request_id),
    )
    sums = [0.0, *accumulate(item.priority for item in candidates)]
    starts = range(len(candidates) - size + 1)
    best = max(starts, key=lambda start: (sums[start + size] - sums[start], -start))
    window = candidates[best : best + size]
    return sorted(window, key=_best_first)


def keep_running_unless_better(
    view: StepView, ranked: Sequence[Ranked], window: list[Ranked], frame_s: float
) -> list[Ranked]:
    """The preemption gate: exchange running requests only where it pays.

    The window replaces the running batch if it is better by more than MIN_GAIN and if what it
    earns in a frame exceeds what recomputing the evicted requests will cost. Otherwise the
    running requests stay, and the window fills the slots they leave.
    """
    size = len(window)
    running = [item for item in ranked if item.request.state is not RequestState.WAITING][:size]
    inside = {item.request.request_id for item in window}
    evicted = [item for item in running if item.request.request_id not in inside]
    if not evicted:
        return window
    kept_ids = {item.request.request_id for item in running}
    fill = [item for item in window if item.request.request_id not in kept_ids]
    stay = [*running, *fill][:size]
    now_worth = sum(item.priority for item in stay)
    gain = sum(item.priority for item in window) - now_worth
    stall_s = sum(item.request.computed_tokens for item in evicted) * view.prefill_token_s
    loss = stall_s / view.token_s * size
    worth_it = gain > MIN_GAIN * now_worth and gain * frame_s > loss
    return window if worth_it else stay


def _split_by_standing(
    ranked: Sequence[Ranked], view: StepView
) -> tuple[list[Ranked], list[Ranked]]:
    by_standing: dict[Standing, list[Ranked]] = {each: [] for each in Standing}
    for item in ranked:
        by_standing[standing(item.request, view)].append(item)
    late = by_standing[Standing.LATE] + by_standing[Standing.LATE_BEST_EFFORT]
    return by_standing[Standing.FEASIBLE], late


def _best_first(item: Ranked) -> tuple[float, float, str]:
    return (-item.priority, item.request.arrival_s, item.request.request_id)


def _stage(request: RequestView) -> tuple[str, int]:
    return (request.slo.program or request.request_id, request.slo.stage)
