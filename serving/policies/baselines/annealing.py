"""Simulated annealing of the queue: the order with the most met SLOs per second of latency.

Source: Huang et al. (2025), SLO-aware scheduling for LLM inferences, sections 4.3 and 5.1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.baselines.annealing_predictor import BatchPrediction, batch_prediction_of
from serving.policies.ranking import order_by, sorted_indices
from serving.policies.urgency import DeadlineClass, deadline_class
from serving.requests import Ints, RequestState
from serving.view import Plan, StepView

COOLING = 20.0 / 500.0
"""The last temperature over the first (section 5.1)."""

SIZE_RATIO = 0.8
NUM_SIZES = 6
"""Candidate batch sizes: NUM_SIZES of them, each SIZE_RATIO times the one before.

The smallest is a third of the largest: G ignores later arrivals, so still smaller sizes would trade
throughput for latency."""


def annealing(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    window: int = 12,
    iterations: int = 120,
    heat: float = 0.01,
    level: float = 0.5,
    seed: int = 0,
) -> Plan:
    """Maximise G = n / t: the number of met SLOs / the sum of all end-to-end latencies.

    A request that has a slot keeps it while it is feasible, like a dispatched request in the
    paper. A linear latency predictor is used to order the queue behind and to choose the batch
    size. The search starts from the best pair of a batch size and an order, by arrival or by
    predicted latency. If that order does not meet every SLO, the head of the queue is annealed.

    Departures. The paper dispatches batch after batch. Here a slot is assigned again as soon as it
    is free, so a request waits for its share of the work ahead, and the paper's moves to the batch
    before and after become moves to an earlier and a later position. The test in the paper's
    listing accepts worse sequences only by mistake, and the listing returns the last sequence.
    Here, as in its prose, a worse sequence is accepted with a probability that falls with the loss
    and with the temperature, and the best sequence is returned. Temperatures are relative to the
    best G so far, because the first may be 0. The iterations fit into the time between two steps.

    Args:
        batch: largest batch size; 0: the engine's slots. Fewer requests run if a smaller batch has
            a higher G.
        window: number of requests at the head of the queue that are annealed; with few iterations
            a longer window is only shuffled. The paper's experiments have 4 to 40 requests.
        iterations: number of sequences that are tried.
        heat: the first temperature, relative to G.
        level: the quantile used as the remaining output length.
        seed: seed of the moves: the same view and seed give the same plan.
    """
    requests, classes = view.requests, deadline_class(view)
    has_slot = requests.state != RequestState.WAITING
    arrived = sorted_indices(requests)
    arrived = arrived[classes[arrived] == DeadlineClass.FEASIBLE]
    holders, queue = arrived[has_slot[arrived]], arrived[~has_slot[arrived]]
    rank = np.zeros(len(requests), dtype=np.int64)
    size = batch or view.slots
    if len(queue):
        prediction, order = best_start(view, holders, queue, size, level)
        if prediction.num_met(order) < len(arrived):
            order = annealed(prediction, order, window, iterations, heat, seed)
        rank[queue[order]] = np.arange(1, len(queue) + 1)
        size = min(size, max(prediction.slots, len(holders)))
    return order_by(view, classes, rank, batch=size, fairness=fairness)


def best_start(
    view: StepView, holders: Ints, queue: Ints, size: int, level: float
) -> tuple[BatchPrediction, Ints]:
    """The batch size and the order of the queue, by arrival or by latency, with the highest G.

    Args:
        holders, queue: indices of the requests with and without a slot, by arrival.
        size: the largest batch size.
    """
    sizes = sorted({max(int(size * SIZE_RATIO**step), 1) for step in range(NUM_SIZES)})[::-1]
    predictions = [batch_prediction_of(view, holders, queue, slots, level) for slots in sizes]
    by_arrival = np.arange(len(queue))
    by_latency = np.argsort(predictions[0].exec_s, kind="stable")
    if predictions[0].num_met(by_latency) == len(holders) + len(queue):
        return predictions[0], by_latency
    starts = [(each, order) for each in predictions for order in (by_latency, by_arrival)]
    return max(starts, key=lambda start: start[0].score(start[1]))


def annealed(
    prediction: BatchPrediction, order: Ints, window: int, iterations: int, heat: float, seed: int
) -> Ints:
    """The order with its first `window` requests annealed: the best sequence that was tried."""
    head, tail = order[:window], order[window:]
    if len(head) < 2:
        return order
    whole_met, whole_s = prediction.outcome(order)
    head_met, head_s = prediction.outcome(head)
    prediction = prediction._replace(
        rest_met=prediction.rest_met + whole_met - head_met,
        rest_s=prediction.rest_s + whole_s - head_s,
    )
    rng = np.random.default_rng(seed)
    moves = rng.integers(3, size=iterations).tolist()
    firsts = rng.integers(len(head), size=iterations).tolist()
    offsets = rng.integers(1, len(head), size=iterations).tolist()
    log_chances = np.log1p(-rng.random(iterations)).tolist()
    current = best_score = prediction.score(head)
    best, temperature = head, heat
    for move, first, offset, log_chance in zip(moves, firsts, offsets, log_chances, strict=True):
        tried = neighbour(head, move, first, (first + offset) % len(head))
        score = prediction.score(tried)
        if score >= current or score - current > temperature * best_score * log_chance:
            head, current = tried, score
            if score > best_score:
                best, best_score = tried, score
        temperature *= COOLING ** (1.0 / iterations)
    return np.concatenate([best, tail])


def neighbour(order: Ints, move: int, first: int, second: int) -> Ints:
    """The order after one move between two positions.

    Args:
        move: 0: the later request moves to the earlier position; 1: the earlier one moves to the
            later position; 2: the two are exchanged.
    """
    low, high = min(first, second), max(first, second)
    changed = order.copy()
    if move == 0:
        changed[low], changed[low + 1 : high + 1] = order[high], order[low:high]
    elif move == 1:
        changed[high], changed[low:high] = order[low], order[low + 1 : high + 1]
    else:
        changed[low], changed[high] = order[high], order[low]
    return changed
