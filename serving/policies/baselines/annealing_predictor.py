"""A linear latency predictor: waits and met SLOs of the queue for a batch size and an order.

Source: Huang et al. (2025), SLO-aware scheduling for LLM inferences, section 3.1 (waits, SLOs and
G) and section 4.2 (the predictor).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.urgency import due_s
from serving.requests import LATENCY, Floats, Ints
from serving.view import StepView

MIN_LATENCY_S = 1e-9
"""Smallest sum of latencies, in seconds, for step models without cost: G divides by it."""


class BatchPrediction(NamedTuple):
    """The predicted times of the queue for one batch size.

    Attributes:
        exec_s, slack_s: of each request in the queue, (n,): its execution time, and the longest
            wait with which it meets its SLO.
        slots: the batch size.
        num_held, held_s: number of requests that hold a slot, and the sum of their execution times.
        rest_met, rest_s: met SLOs and seconds of latency that do not depend on the order.
    """

    exec_s: Floats
    slack_s: Floats
    slots: int
    num_held: int
    held_s: float
    rest_met: int
    rest_s: float

    def outcome(self, order: Ints) -> tuple[int, float]:
        """(number of met SLOs, sum of latencies) of the requests in this order."""
        exec_s = self.exec_s[order]
        wait_s = self.wait_s(exec_s)
        num_met = int(np.count_nonzero(self.slack_s[order] >= wait_s))
        return num_met, float(wait_s.sum() + exec_s.sum())

    def wait_s(self, exec_s: Floats) -> Floats:
        """Predicted seconds until each request gets a slot: (n,).

        Free slots are taken at once. The ends of the slots' holders are taken as evenly spaced:
        with mean execution time m, the first of s slots is free after 2 m / (s + 1), and m / s
        later for each holder beyond s. A request that takes a slot delays the next one by its
        execution time / s. With one slot this is equation 11 for batches of one.

        Args:
            exec_s: execution times in the order of service, (n,).
        """
        wait_s = np.zeros(len(exec_s))
        free = max(self.slots - self.num_held, 0)
        if len(exec_s) > free:
            num_held = self.num_held + free
            mean_s = (self.held_s + float(exec_s[:free].sum())) / num_held
            num_beyond = num_held - self.slots
            wait_s[free:] = mean_s * (2.0 / (self.slots + 1) + num_beyond / self.slots)
            wait_s[free + 1 :] += np.cumsum(exec_s[free:-1]) / self.slots
        return wait_s

    def num_met(self, order: Ints) -> int:
        """n: met SLOs of all requests, with and without a slot."""
        return self.outcome(order)[0] + self.rest_met

    def score(self, order: Ints) -> float:
        """G, in met SLOs per second of latency."""
        num_met, seconds = self.outcome(order)
        return (num_met + self.rest_met) / max(seconds + self.rest_s, MIN_LATENCY_S)


def batch_prediction_of(
    view: StepView, holders: Ints, queue: Ints, slots: int, level: float
) -> BatchPrediction:
    """The linear latency predictor (equations 14 to 19), with the engine's measured step model.

    A decode step's duration grows with the batch and its contexts. A stream meets its SLO by its
    TTFT and TBT, another request by its next due time.

    Args:
        holders, queue: indices of the requests with and without a slot.
        slots: the batch size.
        level: the quantile used as the remaining output length.
    """
    requests, model = view.requests, view.model
    indices = np.concatenate([holders, queue])
    remaining_tokens = requests.remaining_tokens(level)[indices]
    context = (requests.prompt_tokens + requests.output_tokens)[indices] + remaining_tokens / 2
    uncomputed = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)[indices]
    prompt_s = model.prompt_s(uncomputed, requests.computed_tokens[indices])
    prefill_s = np.where(uncomputed > 0, model.base_s + prompt_s, 0.0)
    decode_s = model.token_s + model.sequence_s + model.context_s * float(context.mean())
    step_s = model.base_s + slots * decode_s
    exec_s = prefill_s + remaining_tokens * step_s
    age_s = np.maximum(view.now_s - requests.arrival_s[indices], 0.0)
    slack_s = due_s(view)[indices] - view.now_s - exec_s
    first_s = np.where(requests.output_tokens[indices] > 0, 0.0, requests.ttft_s[indices] - age_s)
    stream_slack_s = np.where(requests.tbt_s[indices] >= step_s, first_s - prefill_s, -np.inf)
    slack_s = np.where(requests.kind[indices] == LATENCY, stream_slack_s, slack_s)
    num_held = len(holders)
    held_s = float(exec_s[:num_held].sum())
    return BatchPrediction(
        exec_s=exec_s[num_held:],
        slack_s=slack_s[num_held:],
        slots=slots,
        num_held=num_held,
        held_s=held_s,
        rest_met=int(np.count_nonzero(slack_s[:num_held] >= 0.0)),
        rest_s=held_s + float(age_s.sum()),
    )
