"""CALM as published in the thesis: the baseline of this project's own version (`calm`).

Source: Wu (2025), section 4.2 and algorithm 4.1.
"""

from __future__ import annotations

import numpy as np

from serving.errors import InvalidEngineConfig
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

STAGE_PRIORITIES = ("own", "goodput", "both")
"""What is added up over the calls of a compound request's stage for its priority: nothing, the
goodput alone, or the goodput and the generation time."""

GOODPUTS = ("tokens", "requests")
"""The goodput that is maximised (chapter 3: any that the provider chooses)."""


def calm_published(
    view: StepView,
    *,
    batch: int = 0,
    cutoff: float = 0.95,
    frame_steps: int = 50,
    starvation_tokens: float = 1.0,
    level: float = 0.9,
    fairness: float = 0.0,
    added_up: str = "own",
    goodput: str = "tokens",
) -> Plan:
    """Grouped margin goodput maximisation over frames of decode steps (equation 4.1).

    Departures. The starvation constant only affects the order within a deadline class, and
    expired work gets the slots that feasible work leaves; otherwise it would outrank small
    feasible requests. A stage's calls run in parallel, so each call's goodput is divided by the
    time of the stage's slowest call, where the thesis adds up both; with the sum over the slowest,
    fewer SLOs are met. A request is feasible while its program can be in time, even if its stage's
    sub-deadline has passed. A request that waits too long is dropped only if its SLO asks for it.

    Args:
        batch: B, number of requests that run at once; 0: the engine's slots.
        cutoff: p in (0, 1]; candidates have at least p times the B-th highest priority.
        frame_steps: decode steps between two decisions, unless a request arrives or ends.
        starvation_tokens: delta, goodput added for each frame that a request has waited.
        level: the quantile that bounds remaining output lengths.
        fairness: f, 0 to 1: the weight of Fair(r) in the priority (section 4.3). The thesis leaves
            Fair's unit open; here 1 equals the highest priority of a feasible request.
        added_up: one of STAGE_PRIORITIES; the thesis adds up "both".
        goodput: one of GOODPUTS.

    Raises:
        InvalidEngineConfig: a fairness outside 0 to 1, or an unknown `added_up` or `goodput`.
    """
    _check_known("added_up", added_up, STAGE_PRIORITIES)
    _check_known("goodput", goodput, GOODPUTS)
    requests, size = view.requests, batch or view.slots
    remaining_tokens = requests.remaining_tokens(level)
    seconds = generation_seconds(view, remaining_tokens)
    frame_s = frame_steps * view.token_s
    waited_frames = np.maximum((view.now_s - requests.unscheduled_s) / frame_s, 0.0)
    reward = feasible_goodput(view, remaining_tokens, seconds)
    if goodput == "requests":
        reward = feasible_requests(view, reward)
    if added_up != "own":
        reward = stage_sums(view, reward)
    spent_s = stage_sums(view, remaining_tokens * view.token_s) if added_up == "both" else seconds
    priority = (reward + starvation_tokens * waited_frames) / spent_s
    classes = deadline_class(view)
    if fairness:
        highest = priority[classes == DeadlineClass.FEASIBLE].max(initial=0.0)
        scores = highest * fair_scores(view.requests.user_tokens)
        priority = mix_in_fairness(priority, scores, fairness)
    order = sorted_indices(requests, classes, -priority)
    stay = stay_limits_of(view)
    dropped = to_drop(view, stay)
    kept = order[~dropped[order]]
    num_feasible = int((classes[kept] == DeadlineClass.FEASIBLE).sum())
    ranked, late = kept[:num_feasible], kept[num_feasible:]
    window = best_window(view, ranked, priority, size, cutoff)
    running = ranked[requests.state[ranked] != RequestState.WAITING][: len(window)]
    group = exchange_batch(view, running, window, priority, frame_s=frame_s)
    run = np.zeros(len(requests), dtype=bool)
    run[group] = True
    # If the group leaves slots, it has all feasible requests, and late ones take the rest.
    run[late[: size - len(group)]] = True
    run = without_weaker_memory_holders(view, kept, run, classes > DeadlineClass.FEASIBLE)
    order = sorted_indices(requests, ~run, classes, -priority)
    plan = plan_of(view, order, run, stay=stay)
    preempted = ~dropped & ~run & (requests.state == RequestState.RUNNING)
    plan = plan._replace(
        preempt=frozenset(requests.ids(np.flatnonzero(preempted))), steps=frame_steps
    )
    return limit_users_ahead(view, plan) if fairness else plan


def generation_seconds(view: StepView, remaining_tokens: Floats) -> Floats:
    """t_gen = remaining tokens * step time; for a compound request, the stage's longest t_gen."""
    requests = view.requests
    own_s = remaining_tokens * view.token_s
    group = _stage_of(view)
    slowest_s = np.zeros(len(own_s))
    np.maximum.at(slowest_s, group, own_s)
    return np.where(requests.kind == COMPOUND, slowest_s[group], own_s)


def stage_sums(view: StepView, amounts: Floats) -> Floats:
    """The sum over its stage's calls for each compound request; of others their own amount."""
    group = _stage_of(view)
    sums = np.bincount(group, weights=amounts, minlength=len(amounts))
    return np.where(view.requests.kind == COMPOUND, sums[group], amounts)


def _stage_of(view: StepView) -> Ints:
    """A number for the stage of each request, equal for the calls of one stage: (n,)."""
    requests = view.requests
    _, stage = np.unique(requests.stage, return_inverse=True)
    _, group = np.unique(requests.program * (len(requests) + 1) + stage, return_inverse=True)
    numbers: Ints = group
    return numbers


def feasible_goodput(view: StepView, remaining_tokens: Floats, seconds: Floats) -> Floats:
    """Weighted tokens that count if the request runs from now on; 0 if it cannot be in time.

    Latency kind: the remaining output. Deadline and compound: input and output, all or nothing.
    Best effort: the remaining output, as if the default deadline were always ahead.
    """
    requests, expiry = view.requests, expiry_s(view)
    streamed = np.where(view.now_s < expiry, remaining_tokens, 0.0)
    whole = requests.prompt_tokens + requests.output_tokens + remaining_tokens
    reward = np.where(view.now_s + seconds <= expiry, whole, 0.0)
    reward = np.where(requests.kind == LATENCY, streamed, reward)
    return np.where(requests.kind == BEST_EFFORT, remaining_tokens, reward) * requests.weight


def feasible_requests(view: StepView, tokens: Floats) -> Floats:
    """The weight of each request that can still meet its SLO, else 0: (n,).

    Args:
        tokens: the result of `feasible_goodput`. A stream must also have its first token in time.
    """
    requests = view.requests
    first_due_s = requests.arrival_s + requests.ttft_s
    misses_first = (requests.output_tokens == 0) & (view.now_s > first_due_s)
    is_lost = (tokens <= 0.0) | ((requests.kind == LATENCY) & misses_first)
    return np.where(is_lost, 0.0, requests.weight)


def best_window(view: StepView, ranked: Ints, priority: Floats, size: int, cutoff: float) -> Ints:
    """The `size` candidates of similar input length with the largest sum of priorities.

    Args:
        ranked: indices of the feasible requests, highest priority first.
    Returns:
        indices of the chosen ones, highest priority first.
    """
    if len(ranked) <= size:
        return ranked
    candidates = ranked[priority[ranked] >= cutoff * priority[ranked[size - 1]]]
    prompts = view.requests.prompt_tokens[candidates]
    ids = view.requests.ids(candidates)
    by_length = sorted(range(len(ids)), key=lambda each: (prompts[each], ids[each]))
    sums = np.concatenate([[0.0], np.cumsum(priority[candidates[by_length]])])
    best = int(np.argmax(sums[size:] - sums[:-size]))
    chosen: Ints = candidates[np.sort(by_length[best : best + size])]
    return chosen


def _check_known(parameter: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidEngineConfig(parameter, value, f"known: {', '.join(known)}")
