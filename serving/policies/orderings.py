"""Policies that are one sort key each."""

from __future__ import annotations

from serving.policies.ranking import order_by
from serving.policies.urgency import due_s, standing
from serving.view import Plan, StepView


def fcfs(view: StepView, *, batch: int = 0) -> Plan:
    """First come, first served: vLLM's own order. The one policy that is blind to deadlines."""
    return order_by(view, lambda request: request.arrival_s, batch=batch)


def edf(view: StepView, *, batch: int = 0) -> Plan:
    """Earliest deadline first among what can still be in time; expired work after it.

    A latency stream's deadline is that of its next token that can be in time, a compound
    request's is its stage's sub-deadline. Source: Wu (2025), appendix D.1.1 (why it is only a
    baseline).
    """
    return order_by(
        view, lambda request: (standing(request, view), due_s(request, view)), batch=batch
    )
