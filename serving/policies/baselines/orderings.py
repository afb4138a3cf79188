"""Policies that are one sort key each."""

from __future__ import annotations

import numpy as np

from serving.length_sketch import LENGTH_LEVELS
from serving.policies.ranking import order_by
from serving.policies.urgency import deadline_class, due_s
from serving.requests import Floats
from serving.view import Plan, StepView

MEDIAN = 0.5
"""Orders by length go by the length that an answer has as likely as not: its rank matters, not
how sure it is."""


def fcfs(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """First come, first served: vLLM's own order. The one policy that is blind to deadlines.

    With fairness it sees them: expired work is last then.
    """
    return order_by(view, None, view.requests.arrival_s, batch=batch, fairness=fairness)


def edf(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Earliest deadline first among what can still be in time; expired work after it.

    A latency stream's deadline is that of its next token that can be in time, a compound
    request's is its stage's sub-deadline. Source: Wu (2025), appendix D.1.1 (why it is only a
    baseline).
    """
    return order_by(view, deadline_class(view), due_s(view), batch=batch, fairness=fairness)


def priority(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """As callers asked, the lowest number first: vLLM's own but for expired work, which is last."""
    return order_by(
        view, deadline_class(view), view.requests.priority, batch=batch, fairness=fairness
    )


def sjf(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Shortest job first: by the length that was foretold of each answer; expired work last.

    Source: Fu et al. (2024), Efficient LLM scheduling by learning to rank (the order of predicted
    lengths); Wu (2025), section 6.1 (LTR, the same as a baseline).
    """
    return order_by(
        view, deadline_class(view), _predicted_tokens(view), batch=batch, fairness=fairness
    )


def srpt(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Shortest remaining processing time: by the seconds to a request's end; expired work last.

    What is left of its prompt at the measured speed of prefill, and of its answer, given how far
    it has grown, at that of a decode step. Source: Schrage (1968), A proof of the optimality of
    the shortest remaining processing time discipline.
    """
    return order_by(view, deadline_class(view), _remaining_s(view), batch=batch, fairness=fairness)


def _predicted_tokens(view: StepView) -> Floats:
    requests = view.requests
    middle = np.maximum(requests.length[:, LENGTH_LEVELS.index(MEDIAN)], 1.0)
    predicted: Floats = np.fmin(middle, requests.max_tokens)
    return predicted


def _remaining_s(view: StepView) -> Floats:
    requests = view.requests
    unread = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    to_come = requests.remaining_tokens(MEDIAN)
    seconds: Floats = unread * view.prefill_token_s + to_come * view.token_s
    return seconds
