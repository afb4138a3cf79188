"""Policies that are one sort key each."""

from __future__ import annotations

from serving.policies.ranking import order_by
from serving.policies.urgency import due_s, standing
from serving.view import Plan, RequestView, StepView

MEDIAN = 0.5
"""Orders by length go by the length that an answer has as likely as not: its rank matters, not
how sure it is."""


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


def priority(view: StepView, *, batch: int = 0) -> Plan:
    """As callers asked, the lowest number first: vLLM's own but for expired work, which is last."""
    return order_by(view, lambda request: (standing(request, view), request.priority), batch=batch)


def sjf(view: StepView, *, batch: int = 0) -> Plan:
    """Shortest job first: by the length that was foretold of each answer; expired work last.

    Source: Fu et al. (2024), Efficient LLM scheduling by learning to rank (the order of predicted
    lengths); Wu (2025), section 6.1 (LTR, the same as a baseline).
    """
    return order_by(
        view, lambda request: (standing(request, view), _foretold_tokens(request)), batch=batch
    )


def srpt(view: StepView, *, batch: int = 0) -> Plan:
    """Shortest remaining processing time: by the seconds to a request's end; expired work last.

    What is left of its prompt at the measured speed of prefill, and of its answer, given how far
    it has grown, at that of a decode step. Source: Schrage (1968), A proof of the optimality of
    the shortest remaining processing time discipline.
    """
    return order_by(
        view, lambda request: (standing(request, view), _remaining_s(request, view)), batch=batch
    )


def _foretold_tokens(request: RequestView) -> float:
    length, limit = request.slo.length, float(request.max_tokens)
    return limit if length is None else min(length.upper(MEDIAN), limit)


def _remaining_s(request: RequestView, view: StepView) -> float:
    unread = max(request.prompt_tokens - request.computed_tokens, 0)
    return unread * view.prefill_token_s + request.remaining_tokens(MEDIAN) * view.token_s
