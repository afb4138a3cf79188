"""Largest service density first: by service gain per second of remaining time.

Source: Zhang et al. (2025), Tempo, sections 3.1, 4.2 and 4.3, algorithm 1.
"""

from __future__ import annotations

import numpy as np

from serving.policies.ranking import order_by, sorted_indices
from serving.policies.urgency import deadline_class
from serving.requests import BEST_EFFORT, COMPOUND, LATENCY, Floats, Ints, RequestState
from serving.view import Plan, StepView

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Gain of an input and of an output token, in the ratio of commercial prices (section 3.1)."""

RESERVED_EVERY = 10
"""One slot in this many is for best-effort requests (section 4.3: 10% of the batch)."""


def lsdf(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    exponent: float = 1.0,
    level: float = 0.9,
    quantum_steps: int = 20,
) -> Plan:
    """Rank by expected service gain / predicted remaining time (the density).

    Every tenth slot is for best effort, oldest first; slots that one side cannot fill go to the
    other. A running request's density is raised by the share of a quantum that its recomputation
    would take, so only a clearly denser request preempts it.

    Equation 4 multiplies the gain of late work by (estimated / promised)^alpha, which would reward
    lateness; its prose and section 3.1 say that lateness lowers the gain, so here the factor is
    (promised / estimated)^alpha. Departures: expired work comes last; the SLO's weight multiplies
    the gain; arrivals and ends cut a quantum short, because the engine plans again.

    Args:
        exponent: alpha, at least 0: how fast lateness lowers the gain.
        level: the quantile that bounds remaining output lengths.
        quantum_steps: decode steps between two decisions.
    """
    requests = view.requests
    remaining_tokens = requests.remaining_tokens(level)
    left_s = remaining_s(view, remaining_tokens)
    density = service_gain(view, remaining_tokens, left_s, exponent) / left_s
    running = requests.state == RequestState.RUNNING
    stall_s = np.where(running, requests.computed_tokens * view.prefill_token_s, 0.0)
    density *= 1.0 + stall_s / (quantum_steps * view.token_s)
    rank = ranks_with_reserve(view, sorted_indices(requests, deadline_class(view), -density))
    plan = order_by(view, deadline_class(view), rank, batch=batch, fairness=fairness)
    return plan._replace(steps=quantum_steps)


def remaining_s(view: StepView, remaining_tokens: Floats) -> Floats:
    """Seconds until each request ends if it runs from now on: (n,).

    For a compound request, those of its stage's slowest call.
    """
    requests = view.requests
    uncomputed = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    own_s = uncomputed * view.prefill_token_s + remaining_tokens * view.token_s
    _, stage = np.unique(requests.stage, return_inverse=True)
    _, group = np.unique(requests.program * (len(own_s) + 1) + stage, return_inverse=True)
    slowest_s = np.zeros(len(own_s))
    np.maximum.at(slowest_s, group, own_s)
    return np.where(requests.kind == COMPOUND, slowest_s[group], own_s)


def service_gain(
    view: StepView, remaining_tokens: Floats, left_s: Floats, exponent: float
) -> Floats:
    """Expected service gain in weighted tokens, for requests that run from now on: (n,).

    Deadline and compound: all tokens, decayed by the predicted end against the deadline, the
    stage's for compound (equation 2). Latency: the input, decayed by the predicted first token
    against the TTFT until it is there, and the output, decayed by the measured step time against
    the TBT (equation 3). Best effort: all tokens.
    """
    requests = view.requests
    elapsed_s = np.maximum(view.now_s - requests.arrival_s, 0.0)
    input_gain = INPUT_WEIGHT * requests.prompt_tokens
    output_gain = OUTPUT_WEIGHT * (requests.output_tokens + remaining_tokens)
    allowed_s = requests.deadline_s - requests.arrival_s
    whole = (input_gain + output_gain) * decay(allowed_s, elapsed_s + left_s, exponent)
    uncomputed = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    first_s = elapsed_s + uncomputed * view.prefill_token_s + view.token_s
    first = np.where(requests.output_tokens > 0, 1.0, decay(requests.ttft_s, first_s, exponent))
    streamed = input_gain * first + output_gain * decay(requests.tbt_s, view.token_s, exponent)
    return np.where(requests.kind == LATENCY, streamed, whole) * requests.weight


def decay(promised_s: Floats, taken_s: Floats | float, exponent: float) -> Floats:
    """min(1, (promised / taken)^exponent): the factor on the gain of late work."""
    factor: Floats = np.minimum(promised_s / taken_s, 1.0) ** exponent
    return factor


def ranks_with_reserve(view: StepView, order: Ints) -> Ints:
    """The rank of each request if every tenth rank is for best effort, oldest first: (n,).

    Args:
        order: indices of all requests, best first.
    """
    best_effort = view.requests.kind == BEST_EFFORT
    by_age = sorted_indices(view.requests)
    others, reserve = order[~best_effort[order]], by_age[best_effort[by_age]]
    rank = np.empty(len(order), dtype=np.int64)
    rank[others] = np.arange(len(others)) * RESERVED_EVERY // (RESERVED_EVERY - 1)
    rank[reserve] = np.arange(len(reserve)) * RESERVED_EVERY + RESERVED_EVERY - 1
    return rank
