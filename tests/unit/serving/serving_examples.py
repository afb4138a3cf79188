"""Requests and views with neutral defaults, so that a test sets only the values that matter."""

from __future__ import annotations

from typing import Any

from serving.requests import Requests, RequestState, RequestView
from serving.slo import OnLate, Slo, SloKind
from serving.view import StepModel, StepView


def request(request_id: str, **changes: Any) -> RequestView:
    """A waiting best-effort request of 10 prompt and at most 10 output tokens."""
    view = RequestView(
        request_id=request_id,
        arrival_s=0.0,
        slo=Slo(),
        prompt_tokens=10,
        max_tokens=10,
        priority=0,
        state=RequestState.WAITING,
        computed_tokens=0,
        output_tokens=0,
        unscheduled_s=0.0,
    )
    return view._replace(**changes)


def running(request_id: str, **changes: Any) -> RequestView:
    """The same request in state RUNNING, with its prompt in the KV cache."""
    return request(request_id, **{"state": RequestState.RUNNING, "computed_tokens": 10} | changes)


def step(*requests: RequestView, **changes: Any) -> StepView:
    """A view at time 0: two slots, decode steps of one second, prefill at the model's token_s."""
    view = StepView(
        now_s=0.0,
        requests=Requests.of(requests),
        slots=2,
        step_tokens=100,
        token_s=1.0,
        prefill_token_s=changes.get("model", StepModel()).token_s,
        mean_step_s=1.0,
    )
    return view._replace(**changes)


def deadline(deadline_s: float, **more: Any) -> Slo:
    return Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s, **more)


def compound(deadline_s: float, **more: Any) -> Slo:
    return Slo(kind=SloKind.COMPOUND, deadline_s=deadline_s, **more)


def latency(ttft_s: float, tbt_s: float, **more: Any) -> Slo:
    return Slo(kind=SloKind.LATENCY, ttft_s=ttft_s, tbt_s=tbt_s, **more)


def dropped_when_late(deadline_s: float) -> Slo:
    return deadline(deadline_s, on_late=OnLate.DROP)
