"""From a rank to a plan: the one place where ties are broken and SLO drops are honoured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from serving.policies.urgency import drop_reason, next_change_s
from serving.view import Plan, RequestView, StepView

Rank = float | tuple[float, ...]


def order_by(view: StepView, rank: Callable[[RequestView], Rank], *, batch: int = 0) -> Plan:
    """Order requests by rank, lowest first; ties by arrival, then id. The first `batch` run.

    Args:
        rank: a request's key; smaller runs earlier.
        batch: how many run at once; 0: as many as the engine has slots.
    """
    dropped = drops(view)
    gone = {request_id for request_id, _ in dropped}
    ranked = sorted(view.requests, key=lambda r: (rank(r), r.arrival_s, r.request_id))
    kept = [request for request in ranked if request.request_id not in gone]
    return plan_of(view, kept, kept[: batch or view.slots], dropped)


def drops(view: StepView) -> tuple[tuple[str, str], ...]:
    """The requests whose own SLO asks to give them up now, each with its reason."""
    found = [(r, reason) for r in view.requests if (reason := drop_reason(r, view.now_s))]
    found.sort(key=lambda each: (each[0].arrival_s, each[0].request_id))
    return tuple((request.request_id, reason) for request, reason in found)


def plan_of(
    view: StepView,
    kept: Iterable[RequestView],
    run: Iterable[RequestView],
    dropped: tuple[tuple[str, str], ...],
) -> Plan:
    """The plan that ranks `kept` as given, computes `run`, and ends `dropped`.

    It holds until time alone would change some request's standing.
    """
    ranked = list(kept)
    return Plan(
        order=(*(r.request_id for r in ranked), *(request_id for request_id, _ in dropped)),
        run=frozenset(r.request_id for r in run),
        drop=dropped,
        until_s=min(
            (next_change_s(r, view.now_s) for r in ranked),
            default=float("inf"),
        ),
    )
