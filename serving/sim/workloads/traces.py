"""Programs from a trace file: its requests at their times, or its workflows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.arrivals import poisson, rescaled
from serving.sim.workloads.tasks import STAGE_DEADLINE_S, TBT_S, TTFT_S
from serving.sim.workloads.trace_files import Trace, TraceRequest, Workflow
from serving.slo import SloKind
from serving.workload_errors import InvalidWorkload


def trace_programs(
    trace: Trace,
    *,
    rate_per_s: float | None = None,
    window_s: float | None = None,
    seed: int = 0,
    kinds: Sequence[SloKind] = (SloKind.LATENCY, SloKind.DEADLINE),
    slo_scale: float = 1.0,
) -> tuple[Program, ...]:
    """The programs of a trace, by arrival, with the SLOs of Wu (2025), section 6.1.

    Requests become programs of one call. Their kinds are drawn from `kinds` (traces do not have
    them), and their prompts share no text, even if the file records shared prompts.
    Workflows become compound programs that arrive as a Poisson process in random order; each
    arrives once before any arrives again. Their tools take no time (no file has tool times).

    Args:
        rate_per_s: mean arrivals per second; None keeps the trace's own times.
        window_s: only arrivals before it; None: all of the trace.
        kinds: of single requests; latency, deadline or best effort.
        slo_scale: factor on every time of the SLOs.
    Raises:
        InvalidWorkload: a value is out of range, the trace is too short for the window at this
            rate, or it holds workflows and rate or window is missing.
    """
    if not (math.isfinite(slo_scale) and slo_scale > 0):
        raise InvalidWorkload("slo_scale", slo_scale, "must be a finite number above 0")
    if seed < 0:
        raise InvalidWorkload("seed", seed, "must be at least 0")
    if not kinds or SloKind.COMPOUND in kinds:
        reason = "single requests need at least one kind, and none may be compound"
        raise InvalidWorkload("kinds", tuple(map(str, kinds)), reason)
    rng = np.random.default_rng(seed)
    if trace.workflows:
        if rate_per_s is None or window_s is None:
            reason = "the trace has no times: give the rate and the window"
            raise InvalidWorkload("rate_per_s, window_s", (rate_per_s, window_s), reason)
        times = poisson(rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
        count = len(trace.workflows)
        num_rounds = -(-len(times) // count)
        order = [index for _ in range(num_rounds) for index in rng.permutation(count).tolist()]
        workflows = [trace.workflows[index] for index in order[: len(times)]]
        drawn_kinds = [SloKind.COMPOUND] * len(times)
    else:
        times = _request_times(trace.requests, rate_per_s, window_s)
        workflows = [
            Workflow("trace", (Stage((Call(request.prompt_tokens, request.output_tokens),)),))
            for request in trace.requests[: len(times)]
        ]
        drawn_kinds = [kinds[index] for index in rng.integers(len(kinds), size=len(times)).tolist()]
    return tuple(
        _program(f"trace-{index:06d}", kind, arrival_s, workflow, slo_scale)
        for index, (kind, arrival_s, workflow) in enumerate(
            zip(drawn_kinds, times, workflows, strict=True)
        )
    )


def _program(
    program_id: str, kind: SloKind, arrival_s: float, workflow: Workflow, slo_scale: float
) -> Program:
    has_deadline = kind in (SloKind.DEADLINE, SloKind.COMPOUND)
    deadline_s = STAGE_DEADLINE_S * len(workflow.stages) * slo_scale
    return Program(
        id=program_id,
        application=workflow.application,
        kind=kind,
        arrival_s=arrival_s,
        stages=workflow.stages,
        ttft_s=TTFT_S * slo_scale,
        tbt_s=TBT_S * slo_scale,
        deadline_s=deadline_s if has_deadline else None,
    )


def _request_times(
    requests: Sequence[TraceRequest], rate_per_s: float | None, window_s: float | None
) -> list[float]:
    if window_s is not None and not window_s > 0:
        raise InvalidWorkload("window_s", window_s, "must be above 0")
    times = [request.arrival_s for request in requests]
    if rate_per_s is not None:
        scaled: list[float] = rescaled(times, rate_per_s=rate_per_s, window_s=window_s).tolist()
        return scaled
    return [time_s for time_s in times if window_s is None or time_s < window_s]
