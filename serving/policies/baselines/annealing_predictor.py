"""What a batch size and an order make of the waiting line, by a linear latency predictor.

Source: Huang et al. (2025), SLO-aware scheduling for LLM inferences, section 3.1 (waits, promises
and G) and section 4.2 (the predictor).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.urgency import due_s
from serving.requests import LATENCY, Floats, Ints
from serving.view import StepView

LEAST_S = 1e-9
"""Latencies that sum to less are taken as this: an engine that costs no time divides by nothing."""


class BatchPrediction(NamedTuple):
    """What a batch size makes of the line.

    Attributes:
        exec_s, slack_s: of each in the line, (n,): its own seconds, and how long it may wait.
        slots: the batch size.
        num_held, held_s: how many hold a slot already, and the seconds that they take in all.
        rest_kept, rest_s: promises kept and seconds that no order of the line changes.
    """

    exec_s: Floats
    slack_s: Floats
    slots: int
    num_held: int
    held_s: float
    rest_kept: int
    rest_s: float

    def outcome(self, order: Ints) -> tuple[int, float]:
        """Promises kept, and the sum of waits and own seconds, of those in this order."""
        exec_s = self.exec_s[order]
        wait_s = self.wait_s(exec_s)
        kept = int(np.count_nonzero(self.slack_s[order] >= wait_s))
        return kept, float(wait_s.sum() + exec_s.sum())

    def wait_s(self, exec_s: Floats) -> Floats:
        """How long each waits for a slot, in the order in which they are served: (n,).

        Free slots are taken at once. Those who hold the slots are as if evenly staggered: with
        their mean m, the first of s slots falls free after 2 m / (s + 1), and each further one
        too many after m / s. Who takes a slot delays the next in line by his own seconds / s. With
        one slot this is equation 11 for batches of one.
        """
        wait_s = np.zeros(len(exec_s))
        free = max(self.slots - self.num_held, 0)
        if len(exec_s) > free:
            num_held = self.num_held + free
            mean_s = (self.held_s + float(exec_s[:free].sum())) / num_held
            too_many = num_held - self.slots
            wait_s[free:] = mean_s * (2.0 / (self.slots + 1) + too_many / self.slots)
            wait_s[free + 1 :] += np.cumsum(exec_s[free:-1]) / self.slots
        return wait_s

    def kept(self, order: Ints) -> int:
        """n: promises kept by all, with and without a slot."""
        return self.outcome(order)[0] + self.rest_kept

    def score(self, order: Ints) -> float:
        """G, in promises a second."""
        kept, seconds = self.outcome(order)
        return (kept + self.rest_kept) / max(seconds + self.rest_s, LEAST_S)


def batch_prediction_of(
    view: StepView, holders: Ints, line: Ints, slots: int, level: float
) -> BatchPrediction:
    """The linear latency predictor (equations 14 to 19), with the engine's measured step cost.

    A decode step takes longer the more are in the batch and the longer their contexts. A stream's
    promise is its TTFT and its TBT, that of all others the moment when they are next due.
    """
    requests, model = view.requests, view.model
    places = np.concatenate([holders, line])
    to_come = requests.remaining_tokens(level)[places]
    context = (requests.prompt_tokens + requests.output_tokens)[places] + to_come / 2
    unread = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)[places]
    prompt_s = model.prompt_s(unread, requests.computed_tokens[places])
    read_s = np.where(unread > 0, model.base_s + prompt_s, 0.0)
    each_s = model.token_s + model.sequence_s + model.context_s * float(context.mean())
    step_s = model.base_s + slots * each_s
    exec_s = read_s + to_come * step_s
    age_s = np.maximum(view.now_s - requests.arrival_s[places], 0.0)
    slack_s = due_s(view)[places] - view.now_s - exec_s
    in_time = np.where(requests.output_tokens[places] > 0, 0.0, requests.ttft_s[places] - age_s)
    streamed_s = np.where(requests.tbt_s[places] >= step_s, in_time - read_s, -np.inf)
    slack_s = np.where(requests.kind[places] == LATENCY, streamed_s, slack_s)
    num_held = len(holders)
    held_s = float(exec_s[:num_held].sum())
    return BatchPrediction(
        exec_s=exec_s[num_held:],
        slack_s=slack_s[num_held:],
        slots=slots,
        num_held=num_held,
        held_s=held_s,
        rest_kept=int(np.count_nonzero(slack_s[:num_held] >= 0.0)),
        rest_s=held_s + float(age_s.sum()),
    )
