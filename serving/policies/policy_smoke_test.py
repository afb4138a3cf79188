"""A check of a policy and its parameters on small views, before an engine uses it."""

from __future__ import annotations

import numpy as np

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import Requests, RequestState, RequestView
from serving.slo import Slo, SloKind
from serving.view import Plan, Policy, StepView, plan_faults


def smoke_test_faults(policy: Policy) -> list[str]:
    """Exceptions and contract breaches of a policy on small views; empty for a valid one.

    A parameter value that the policy cannot handle fails here and not in the engine, where it
    would end every request.
    """
    for view in _VIEWS:
        try:
            with np.errstate(divide="raise", invalid="raise"):
                plan: object = policy(view)
            if isinstance(plan, Plan):
                faults = plan_faults(view, plan)
            else:
                faults = [f"it returned {type(plan).__name__} and not a Plan"]
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        if faults:
            return faults
    return []


def _view_of_equals(num_requests: int) -> StepView:
    """Equal requests that are not late yet and cannot be in time, so all parameters are used."""
    length = LengthSketch((8.0,) * len(LENGTH_LEVELS))
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=60.01, length=length)
    return StepView(
        now_s=60.0,
        requests=Requests.of(
            RequestView(
                request_id=str(index),
                arrival_s=0.0,
                slo=slo,
                prompt_tokens=8,
                max_tokens=8,
                priority=0,
                state=RequestState.WAITING,
                computed_tokens=0,
                output_tokens=0,
                unscheduled_s=0.0,
            )
            for index in range(num_requests)
        ),
        slots=2,
        step_tokens=64,
        token_s=0.02,
        prefill_token_s=0.001,
        mean_step_s=0.03,
    )


def _view_of_kinds() -> StepView:
    """One request of each SLO kind; the same four are the recent arrivals."""
    view = _view_of_equals(4)
    slos = (
        Slo(kind=SloKind.LATENCY, ttft_s=61.0, tbt_s=0.1),
        Slo(kind=SloKind.DEADLINE, deadline_s=90.0),
        Slo(kind=SloKind.COMPOUND, deadline_s=70.0, final_s=120.0, program="run"),
        Slo(),
    )
    requests = Requests.of(
        row._replace(slo=slo) for row, slo in zip(view.requests, slos, strict=True)
    )
    return view._replace(requests=requests, arrivals=requests, arrivals_s=60.0)


_VIEWS = (_view_of_equals(1), _view_of_equals(3), _view_of_kinds())
