"""Programs that arrive as a trace file says, or that run the workflows it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.arrivals import poisson, rescaled
from serving.sim.workloads.trace_files import Trace, TraceRequest, Workflow
from serving.sim.workloads.workloads import STAGE_DEADLINE_S, TBT_S, TTFT_S
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
    """The programs of a trace, by arrival, with Wu's promises (section 6.1).

    Requests become programs of one call, each of a kind drawn from `kinds` (no trace tells them),
    and are all of different text, whatever the file tells of shared prompts.
    Workflows become compound programs that arrive as a Poisson process, drawn in a random order
    in which none comes again before all have come; their tools take no time (no file has any).

    Args:
        rate_per_s: mean arrivals a second; None keeps the trace's own times.
        window_s: only what arrives before; None: all that the trace has.
        kinds: of single requests; latency, deadline or best effort.
        slo_scale: what every promised time is multiplied with.
    Raises:
        InvalidWorkload: a value is out of range, the trace is too short for the window at this
            rate, or it holds workflows and rate or window is missing.
    """
    if not (math.isfinite(slo_scale) and slo_scale > 0):
        raise InvalidWorkload("slo_scale", slo_scale, "must be a finite number above 0")
    if seed < 0:
        raise InvalidWorkload("seed", seed, "must be at least 0")
    if not kinds or SloKind.COMPOUND in kinds:
        told = "single requests need at least one kind, and none of them compound"
        raise InvalidWorkload("kinds", tuple(map(str, kinds)), told)
    rng = np.random.default_rng(seed)
    if trace.workflows:
        if rate_per_s is None or window_s is None:
            told = "the trace holds no times: give the rate and the window"
            raise InvalidWorkload("rate_per_s, window_s", (rate_per_s, window_s), told)
        times = poisson(rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
        rounds = -(-len(times) // len(trace.workflows))
        order = [at for _ in range(rounds) for at in rng.permutation(len(trace.workflows)).tolist()]
        asked = [trace.workflows[at] for at in order[: len(times)]]
        drawn = [SloKind.COMPOUND] * len(times)
    else:
        times = _request_times(trace.requests, rate_per_s, window_s)
        asked = [
            Workflow("trace", (Stage((Call(request.prompt_tokens, request.output_tokens),)),))
            for request in trace.requests[: len(times)]
        ]
        drawn = [kinds[which] for which in rng.integers(len(kinds), size=len(times)).tolist()]
    return tuple(
        _program(f"trace-{index:06d}", kind, arrival_s, workflow, slo_scale)
        for index, (kind, arrival_s, workflow) in enumerate(zip(drawn, times, asked, strict=True))
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
        shaped: list[float] = rescaled(times, rate_per_s=rate_per_s, window_s=window_s).tolist()
        return shaped
    return [at for at in times if window_s is None or at < window_s]
