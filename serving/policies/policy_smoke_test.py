"""A policy tried out before an engine depends on it."""

from __future__ import annotations

import numpy as np

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import Requests, RequestState, RequestView
from serving.slo import Slo, SloKind
from serving.view import Policy, StepView, plan_faults


def smoke_test_faults(policy: Policy) -> list[str]:
    """What is wrong with a policy and its parameters, on small views; empty for a sound one.

    A value that the policy cannot work with shows here, not within the engine, which it would
    end for every caller.
    """
    for view in _TRIALS:
        try:
            with np.errstate(divide="raise", invalid="raise"):
                faults = plan_faults(view, policy(view))
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        if faults:
            return faults
    return []


def _trial(num_requests: int) -> StepView:
    """Equal requests that are not yet late and cannot be in time, so that every value counts."""
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


def _mixed_trial() -> StepView:
    """One request of each kind, which arrived lately."""
    view = _trial(4)
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


_TRIALS = (_trial(1), _trial(3), _mixed_trial())
