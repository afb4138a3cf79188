"""Policies that order requests by a single key."""

from __future__ import annotations

import numpy as np

from serving.length_sketch import LENGTH_LEVELS
from serving.policies.ranking import order_by
from serving.policies.urgency import deadline_class, due_s
from serving.requests import Floats, RequestState
from serving.view import Plan, StepView

MEDIAN = 0.5
"""The quantile of predicted lengths that policies order by: only the ranks matter, not a bound."""


def fcfs(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """First come, first served: vLLM's own order, and the only policy that ignores deadlines.

    With fairness, expired work comes last.
    """
    return order_by(view, None, view.requests.arrival_s, batch=batch, fairness=fairness)


def edf(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Earliest deadline first among the requests that can still be in time; expired work last.

    A latency stream is due at its next token that can be in time, a compound request at its
    stage's sub-deadline. Source: Wu (2025), appendix D.1.1 (why it is only a baseline).
    """
    return order_by(view, deadline_class(view), due_s(view), batch=batch, fairness=fairness)


def priority(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """By the callers' priority, lowest first, as in vLLM, except that expired work is last."""
    return order_by(
        view, deadline_class(view), view.requests.priority, batch=batch, fairness=fairness
    )


def sjf(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    late_last: bool = True,
    preempts: bool = True,
) -> Plan:
    """Shortest job first: by the predicted length of each answer; expired work last.

    Args:
        late_last: False: expired work keeps its place, as in the papers, which know no deadlines.
        preempts: False: a request that has a slot keeps it before shorter ones that wait.
    Source: Fu et al. (2024), Efficient LLM scheduling by learning to rank (the order of predicted
    lengths); Wu (2025), section 6.1 (LTR, the same as a baseline).
    """
    classes = deadline_class(view) if late_last else None
    waits = (view.requests.state == RequestState.WAITING) & (not preempts)
    return order_by(view, classes, waits, _predicted_tokens(view), batch=batch, fairness=fairness)


def srpt(view: StepView, *, batch: int = 0, fairness: float = 0.0) -> Plan:
    """Shortest remaining processing time: by the seconds to a request's end; expired work last.

    Seconds = uncomputed prompt tokens * prefill time + remaining output tokens * step time, both
    as measured. Source: Schrage (1968), A proof of the optimality of the shortest remaining
    processing time discipline.
    """
    return order_by(view, deadline_class(view), _remaining_s(view), batch=batch, fairness=fairness)


def _predicted_tokens(view: StepView) -> Floats:
    requests = view.requests
    median = np.maximum(requests.length[:, LENGTH_LEVELS.index(MEDIAN)], 1.0)
    predicted: Floats = np.fmin(median, requests.max_tokens)
    return predicted


def _remaining_s(view: StepView) -> Floats:
    requests = view.requests
    uncomputed = np.maximum(requests.prompt_tokens - requests.computed_tokens, 0)
    remaining_tokens = requests.remaining_tokens(MEDIAN)
    seconds: Floats = uncomputed * view.prefill_token_s + remaining_tokens * view.token_s
    return seconds
