"""Workloads by name, and the seeded programs of each."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.arrivals import ARRIVALS
from serving.sim.workloads.families import FAMILIES
from serving.sim.workloads.published import PUBLISHED
from serving.sim.workloads.tasks import Task, Workload
from serving.slo import SloKind
from serving.step_cost import STEP_COSTS, Composition
from serving.workload_errors import InvalidWorkload

WORKLOADS: Mapping[str, Workload] = MappingProxyType({**PUBLISHED, **FAMILIES})
"""Workloads by name."""


def generate(
    name: str,
    *,
    rate_per_s: float,
    window_s: float,
    seed: int,
    arrivals: str | Sequence[float] | None = None,
    slo_scale: float = 1.0,
) -> tuple[Program, ...]:
    """The programs of one window, by arrival; the same arguments give the same programs.

    The calls of the i-th program do not depend on the rate, the arrivals and the scale.

    Args:
        name: one of WORKLOADS.
        rate_per_s: programs per second, on average.
        window_s: arrivals are within [0, window_s).
        arrivals: one of ARRIVALS, or arrival times (for example from `arrivals.rescaled`), for
            which the rate is ignored; None: the workload's own process.
        slo_scale: factor on every time of the SLOs.
    Raises:
        InvalidWorkload: an unknown name, or a value out of range.
        InvalidProgram: a given time is below 0 or not finite.
    """
    if name not in WORKLOADS:
        raise InvalidWorkload("workload", name, f"unknown; known: {', '.join(WORKLOADS)}")
    if seed < 0:
        raise InvalidWorkload("seed", seed, "must be at least 0")
    if not (math.isfinite(slo_scale) and slo_scale > 0):
        raise InvalidWorkload("slo_scale", slo_scale, "must be a finite number above 0")
    tasks, max_tokens = WORKLOADS[name].tasks, WORKLOADS[name].max_tokens
    if arrivals is None:
        arrivals = WORKLOADS[name].arrivals
    if not isinstance(arrivals, str):
        times = sorted(float(time) for time in arrivals if time < window_s)
    elif arrivals in ARRIVALS:
        rng = np.random.default_rng([seed, zlib.crc32(b"arrivals")])
        times = ARRIVALS[arrivals](rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
    else:
        raise InvalidWorkload("arrivals", arrivals, f"unknown; known: {', '.join(ARRIVALS)}")
    cumulative_shares = list(accumulate(task.share for task in tasks))
    programs = []
    for index, arrival_s in enumerate(times):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
        drawn_share = rng.random() * cumulative_shares[-1]
        task_index = int(np.searchsorted(cumulative_shares, drawn_share, side="right"))
        task = tasks[min(task_index, len(tasks) - 1)]
        stages = _cut_answers(task.stages(rng), max_tokens)
        programs.append(_program(f"{name}-{index:06d}", task, arrival_s, stages, slo_scale))
    return tuple(programs)


def _cut_answers(stages: tuple[Stage, ...], max_tokens: int) -> tuple[Stage, ...]:
    """The same calls with answers of at most max_tokens."""
    return tuple(
        stage._replace(calls=tuple(_cut_answer(call, max_tokens) for call in stage.calls))
        for stage in stages
    )


def _cut_answer(call: Call, max_tokens: int) -> Call:
    """Of an answer in two parts, both are cut by the same factor."""
    cut = call._replace(output_tokens=min(call.output_tokens, max_tokens))
    if call.then_from is not None and cut.output_tokens < call.output_tokens:
        cut = cut._replace(then_from=call.then_from * cut.output_tokens // call.output_tokens)
    return cut


def _program(
    program_id: str, task: Task, arrival_s: float, stages: tuple[Stage, ...], slo_scale: float
) -> Program:
    ttft_s = task.ttft_s
    if task.ttft_slowdown is not None:
        ttft_s = task.ttft_slowdown * _isolated_latency_s(stages[0].calls[0].prompt_tokens)
    has_deadline = task.kind in (SloKind.DEADLINE, SloKind.COMPOUND)
    return Program(
        id=program_id,
        application=task.application,
        kind=task.kind,
        arrival_s=arrival_s,
        stages=stages,
        ttft_s=ttft_s * slo_scale,
        tbt_s=task.tbt_s * slo_scale,
        deadline_s=task.stage_deadline_s * len(stages) * slo_scale if has_deadline else None,
        user=task.user,
        then_tbt_s=None if task.then_tbt_s is None else task.then_tbt_s * slo_scale,
    )


def _isolated_latency_s(prompt_tokens: int) -> float:
    """Seconds to prefill a prompt in one step on an idle A100."""
    return STEP_COSTS["a100-llama3-8b"].seconds(Composition.of_prompt(prompt_tokens))
