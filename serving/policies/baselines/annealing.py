"""Simulated annealing of the waiting line: the order that keeps most promises per second.

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
"""Batch sizes that are weighed: each this share of the one before, the largest first. None is
below a third of it: G knows nothing of requests to come, and would trade throughput for latency."""


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
    """Maximises G = n / t: promises kept, over the sum of all end-to-end latencies.

    Who has a slot keeps it while it is feasible, as dispatched requests do in the paper; the line
    behind them is ordered, and the batch size chosen, by a linear latency predictor. Of the two
    starts, the line by arrival and by predicted latency, and of several batch sizes the best pair
    is taken. If that does not keep every promise, the head of the line is annealed.

    Departures. The paper dispatches batch after batch; here a slot is given anew when it falls
    free, so that a request waits for its share of the work ahead, and the moves into the batch
    before and after become moves to an earlier and a later place. The listing's test would accept
    worse sequences only by mistake, and it ends with the last sequence; by its prose, a worse one
    is accepted the more seldom the worse it is and the colder, and the best that was seen counts.
    Temperatures are shares of the best G that was seen, since a start may keep nothing, and
    iterations few enough for the time between two steps.

    Args:
        batch: largest batch size; 0: as many as the engine has slots. Fewer run where a smaller
            batch promises a higher G.
        window: how many at the head of the line are annealed; with few iterations a longer one is
            only shuffled. The paper's experiments have 4 to 40 requests.
        iterations: sequences that are tried.
        heat: the first temperature, a share of G.
        level: the quantile that foretells remaining output lengths.
        seed: of the moves: the same view and seed give the same plan.
    """
    requests, stands = view.requests, deadline_class(view)
    held = requests.state != RequestState.WAITING
    arrived = sorted_indices(requests)
    arrived = arrived[stands[arrived] == DeadlineClass.FEASIBLE]
    holders, line = arrived[held[arrived]], arrived[~held[arrived]]
    place = np.zeros(len(requests), dtype=np.int64)
    size = batch or view.slots
    if len(line):
        forecast, order = best_start(view, holders, line, size, level)
        if forecast.kept(order) < len(arrived):
            order = annealed(forecast, order, window, iterations, heat, seed)
        place[line[order]] = np.arange(1, len(line) + 1)
        size = min(size, max(forecast.slots, len(holders)))
    return order_by(view, stands, place, batch=size, fairness=fairness)


def best_start(
    view: StepView, holders: Ints, line: Ints, size: int, level: float
) -> tuple[BatchPrediction, Ints]:
    """The batch size and the order of the line, by arrival or by latency, with the highest G.

    Args:
        holders, line: places of those with and without a slot, by arrival.
        size: the largest batch size.
    """
    sizes = sorted({max(int(size * SIZE_RATIO**step), 1) for step in range(NUM_SIZES)})[::-1]
    forecasts = [batch_prediction_of(view, holders, line, slots, level) for slots in sizes]
    by_arrival, by_latency = np.arange(len(line)), np.argsort(forecasts[0].exec_s, kind="stable")
    if forecasts[0].kept(by_latency) == len(holders) + len(line):
        return forecasts[0], by_latency
    starts = [(forecast, order) for forecast in forecasts for order in (by_latency, by_arrival)]
    return max(starts, key=lambda start: start[0].score(start[1]))


def annealed(
    forecast: BatchPrediction, order: Ints, window: int, iterations: int, heat: float, seed: int
) -> Ints:
    """The order with its head annealed: the best sequence of those that were tried."""
    head, tail = order[:window], order[window:]
    if len(head) < 2:
        return order
    whole_kept, whole_s = forecast.outcome(order)
    head_kept, head_s = forecast.outcome(head)
    forecast = forecast._replace(
        rest_kept=forecast.rest_kept + whole_kept - head_kept,
        rest_s=forecast.rest_s + whole_s - head_s,
    )
    rng = np.random.default_rng(seed)
    moves = rng.integers(3, size=iterations).tolist()
    firsts = rng.integers(len(head), size=iterations).tolist()
    offsets = rng.integers(1, len(head), size=iterations).tolist()
    luck = np.log1p(-rng.random(iterations)).tolist()
    current = best_score = forecast.score(head)
    best, temperature = head, heat
    for move, first, offset, chance in zip(moves, firsts, offsets, luck, strict=True):
        tried = moved(head, move, first, (first + offset) % len(head))
        score = forecast.score(tried)
        if score >= current or score - current > temperature * best_score * chance:
            head, current = tried, score
            if score > best_score:
                best, best_score = tried, score
        temperature *= COOLING ** (1.0 / iterations)
    return np.concatenate([best, tail])


def moved(order: Ints, move: int, one: int, other: int) -> Ints:
    """A neighbour: one of both places squeezed in earlier (0), delayed (1), or both exchanged."""
    low, high = min(one, other), max(one, other)
    tried = order.copy()
    if move == 0:
        tried[low], tried[low + 1 : high + 1] = order[high], order[low:high]
    elif move == 1:
        tried[high], tried[low:high] = order[low], order[low + 1 : high + 1]
    else:
        tried[low], tried[high] = order[high], order[low]
    return tried
