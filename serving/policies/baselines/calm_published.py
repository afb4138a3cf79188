"""CALM to the letter of the thesis: the published baseline that ours must beat.

Source: Wu (2025), section 4.2 and algorithm 4.1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.fairness import fair_scores, limit_users_ahead, mix_in_fairness
from serving.policies.preemption_gate import exchange_batch
from serving.policies.ranking import plan_of, sorted_indices, without_weaker_memory_holders
from serving.policies.urgency import (
    DeadlineClass,
    deadline_class,
    expiry_s,
    stay_limits_of,
    to_drop,
)
from serving.requests import BEST_EFFORT, COMPOUND, LATENCY, Floats, Ints, RequestState
from serving.view import Plan, StepView


def calm_published(
    view: StepView,
    *,
    batch: int = 0,
    cutoff: float = 0.95,
    frame_steps: int = 50,
    starvation_tokens: float = 1.0,
    level: float = 0.9,
    fairness: float = 0.0,
) -> Plan:
    """Grouped margin goodput maximisation over frames of decode steps (equation 4.1).

    Departures: the starvation constant lifts a request among its equals only, and expired work
    takes the slots that feasible work leaves, or it would outrank small feasible requests. A
    stage's calls run side by side, so that each has its own goodput over the time of the slowest,
    where the thesis adds up both; added up over the slowest, fewer promises are kept. Work can be
    in time if its program can: no stage's sub-deadline ends it. What waits too long is dropped only
    where its own SLO asks for that.

    Args:
        batch: B, how many requests run at once; 0: as many as the engine has slots.
        cutoff: p in (0, 1]; candidates have at least p times the B-th highest priority.
        frame_steps: decode steps between two decisions, unless something arrives or ends.
        starvation_tokens: delta, goodput added for each frame that a request has waited.
        level: the quantile that bounds remaining output lengths.
        fairness: f, 0 to 1: the share of Fair(r) in the priority (section 4.3). The thesis leaves
            Fair's unit open; here 1 is worth the highest priority of any feasible request.

    Raises:
        InvalidEngineConfig: a fairness outside of 0 to 1.
    """
    requests, size = view.requests, batch or view.slots
    to_come = requests.remaining_tokens(level)
    seconds = generation_seconds(view, to_come)
    frame_s = frame_steps * view.token_s
    waited_frames = np.maximum((view.now_s - requests.unscheduled_s) / frame_s, 0.0)
    reward = feasible_goodput(view, to_come, seconds)
    priority = (reward + starvation_tokens * waited_frames) / seconds
    stands = deadline_class(view)
    if fairness:
        highest = priority[stands == DeadlineClass.FEASIBLE].max(initial=0.0)
        priority = mix_in_fairness(
            priority, highest * fair_scores(view.requests.user_tokens), fairness
        )
    order = sorted_indices(requests, stands, -priority)
    stay = stay_limits_of(view)
    gone = to_drop(view, stay)
    kept = order[~gone[order]]
    num_feasible = int((stands[kept] == DeadlineClass.FEASIBLE).sum())
    ranked, late = kept[:num_feasible], kept[num_feasible:]
    window = best_window(view, ranked, priority, size, cutoff)
    running = ranked[requests.state[ranked] != RequestState.WAITING][: len(window)]
    group = exchange_batch(view, running, window, priority, frame_s=frame_s)
    run = np.zeros(len(requests), dtype=bool)
    run[group] = True
    # While feasible requests are left out, the group fills every slot.
    run[late[: size - len(group)]] = True
    run = without_weaker_memory_holders(view, kept, run, stands > DeadlineClass.FEASIBLE)
    order = sorted_indices(requests, ~run, stands, -priority)
    plan = plan_of(view, order, run, stay=stay)
    left_out = ~gone & ~run & (requests.state == RequestState.RUNNING)
    plan = plan._replace(
        preempt=frozenset(requests.ids(np.flatnonzero(left_out))), steps=frame_steps
    )
    return limit_users_ahead(view, plan) if fairness else plan


def generation_seconds(view: StepView, to_come: Floats) -> Floats:
    """t_gen: remaining length bound times measured token time; a stage's slowest call governs."""
    requests = view.requests
    own = to_come * view.token_s
    _, stage = np.unique(requests.stage, return_inverse=True)
    _, group = np.unique(requests.program * (len(own) + 1) + stage, return_inverse=True)
    slowest = np.zeros(len(own))
    np.maximum.at(slowest, group, own)
    return np.where(requests.kind == COMPOUND, slowest[group], own)


def feasible_goodput(view: StepView, to_come: Floats, seconds: Floats) -> Floats:
    """Tokens that count if the request runs from now on; 0 once it cannot be in time.

    Latency kind: the tokens still to come. Deadline and compound: input and output together,
    all or nothing. Best effort: its output, as if its default deadline were always ahead.
    """
    requests, expiry = view.requests, expiry_s(view)
    streamed = np.where(view.now_s < expiry, to_come, 0.0)
    whole = requests.prompt_tokens + requests.output_tokens + to_come
    reward = np.where(view.now_s + seconds <= expiry, whole, 0.0)
    reward = np.where(requests.kind == LATENCY, streamed, reward)
    return np.where(requests.kind == BEST_EFFORT, to_come, reward) * requests.weight


def best_window(view: StepView, ranked: Ints, priority: Floats, size: int, cutoff: float) -> Ints:
    """The `size` candidates of similar input length with the largest sum of priorities.

    Args:
        ranked: places of the candidates, highest priority first; so is what is returned.
    """
    if len(ranked) <= size:
        return ranked
    candidates = ranked[priority[ranked] >= cutoff * priority[ranked[size - 1]]]
    prompts = view.requests.prompt_tokens[candidates]
    names = view.requests.ids(candidates)
    by_length = sorted(range(len(names)), key=lambda each: (prompts[each], names[each]))
    sums = np.concatenate([[0.0], np.cumsum(priority[candidates[by_length]])])
    best = int(np.argmax(sums[size:] - sums[:-size]))
    chosen: Ints = candidates[np.sort(by_length[best : best + size])]
    return chosen
