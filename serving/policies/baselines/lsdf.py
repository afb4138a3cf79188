"""Largest service density first: what a request is worth for each second that it still takes.

Source: Zhang et al. (2025), Tempo, sections 3.1, 4.2 and 4.3, algorithm 1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.ranking import order_by, sorted_indices
from serving.policies.urgency import deadline_class
from serving.requests import BEST_EFFORT, COMPOUND, LATENCY, Floats, Ints, RequestState
from serving.view import Plan, StepView

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Worth of a token, as commercial prices have it (section 3.1)."""

RESERVED_EVERY = 10
"""One place in so many is for requests without a promise (section 4.3: 10% of the batch)."""


def lsdf(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    exponent: float = 1.0,
    level: float = 0.9,
    quantum_steps: int = 20,
) -> Plan:
    """Ranks by expected service gain over predicted remaining time.

    Every tenth place is for best effort, oldest first; places that one side cannot fill go to the
    other. A running request gives way only to one that is denser by more than what recomputing it
    would lose within a quantum.

    Equation 4 multiplies the gain of late work with (estimated / promised)^alpha, which would
    reward lateness; its prose and section 3.1 say that lateness lowers the gain, so here it is
    (promised / estimated)^alpha. Departures: expired work comes last; a gain counts with its
    weight; a quantum is cut short by arrivals and ends, when the engine plans anew.

    Args:
        exponent: alpha, at least 0: how fast lateness devalues; very large: to nothing at once.
        level: the quantile that bounds remaining output lengths.
        quantum_steps: decode steps between two decisions.
    """
    requests = view.requests
    to_come = requests.remaining_tokens(level)
    left_s = remaining_s(view, to_come)
    density = service_gain(view, to_come, left_s, exponent) / left_s
    running = requests.state == RequestState.RUNNING
    stall_s = np.where(running, requests.computed_tokens * view.prefill_token_s, 0.0)
    density *= 1.0 + stall_s / (quantum_steps * view.token_s)
    places = with_reserve(view, sorted_indices(requests, deadline_class(view), -density))
    plan = order_by(view, deadline_class(view), places, batch=batch, fairness=fairness)
    return plan._replace(steps=quantum_steps)


def remaining_s(view: StepView, to_come: Floats) -> Floats:
    """Seconds until each is done if it runs from now on; a stage's slowest call governs: (n,)."""
    requests = view.requests
    unread = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    own_s = unread * view.prefill_token_s + to_come * view.token_s
    _, stage = np.unique(requests.stage, return_inverse=True)
    _, group = np.unique(requests.program * (len(own_s) + 1) + stage, return_inverse=True)
    slowest_s = np.zeros(len(own_s))
    np.maximum.at(slowest_s, group, own_s)
    return np.where(requests.kind == COMPOUND, slowest_s[group], own_s)


def service_gain(view: StepView, to_come: Floats, left_s: Floats, exponent: float) -> Floats:
    """Expected service gain in weighted tokens, for requests that run from now on: (n,).

    Deadline and compound: all tokens, by when they will be done and the (stage's) deadline
    (equation 2). Latency: the input by when its first token will be there, which counts as in
    time once it is; each output token by the measured time between two (equation 3). Best
    effort: all tokens.
    """
    requests = view.requests
    elapsed_s = np.maximum(view.now_s - requests.arrival_s, 0.0)
    read = INPUT_WEIGHT * requests.prompt_tokens
    written = OUTPUT_WEIGHT * (requests.output_tokens + to_come)
    promised_s = requests.deadline_s - requests.arrival_s
    whole = (read + written) * decay(promised_s, elapsed_s + left_s, exponent)
    unread = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    first_s = elapsed_s + unread * view.prefill_token_s + view.token_s
    first = np.where(requests.output_tokens > 0, 1.0, decay(requests.ttft_s, first_s, exponent))
    streamed = read * first + written * decay(requests.tbt_s, view.token_s, exponent)
    return np.where(requests.kind == LATENCY, streamed, whole) * requests.weight


def decay(promised_s: Floats, taken_s: Floats | float, exponent: float) -> Floats:
    """min(1, (promised / taken)^exponent): what is left of a gain that comes late."""
    share: Floats = np.minimum(promised_s / taken_s, 1.0) ** exponent
    return share


def with_reserve(view: StepView, order: Ints) -> Ints:
    """Each request's place when best effort, oldest first, has every tenth one: (n,).

    Args:
        order: places of all requests, best first.
    """
    best_effort = view.requests.kind == BEST_EFFORT
    oldest = sorted_indices(view.requests)
    promised, reserve = order[~best_effort[order]], oldest[best_effort[oldest]]
    place = np.empty(len(order), dtype=np.int64)
    place[promised] = np.arange(len(promised)) * RESERVED_EVERY // (RESERVED_EVERY - 1)
    place[reserve] = np.arange(len(reserve)) * RESERVED_EVERY + RESERVED_EVERY - 1
    return place
