"""An estimate of the best goodput in the long run if all steps have the same duration ("pace").

The upper bound (serving/sim/bound/bound.py) may use long steps (large batches) for a part of the
time, short steps (long chains of calls) for the rest, and serve fractions of the programs of both.
This estimate may not. At each pace it serves only programs that could meet their SLO in isolation
with steps of that duration. Of these it serves the ones that earn most within the window's seconds,
at their least work.

The estimate is optimistic: all lengths are known, nothing waits, work may be done before it
arrives, the KV cache is unlimited, and a few programs are served in part. It is still not a bound:
steps need not have the same duration, and work after the window's end is left out. So the window
must be long, compared with the deadlines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.sim.bound.bound import BIN_S
from serving.sim.bound.demand import Demand, request_demand, token_demand
from serving.sim.bound.least_work import LeastWork
from serving.sim.bound.linear_program import LinearProgram
from serving.sim.programs.programs import Program
from serving.slo import SloKind

Floats = NDArray[np.float64]
DemandOf = Callable[[Program], Demand | None]

NUM_PACES, MIN_FACTOR, LONGEST_S = 40, 1.02, 0.2
"""NUM_PACES are tried, from MIN_FACTOR times the duration of a one-token step to LONGEST_S."""


class Best(NamedTuple):
    """The best pace: its goodput per second of the window, and the seconds of its steps."""

    goodput: float
    step_s: float


class Work(NamedTuple):
    """Programs as columns of shape (m,).

    Attributes:
        value: goodput of the whole program.
        max_step_s: longest steps at which the program meets its SLO in isolation.
        prefill, decode: tokens.
        attention_s: seconds on top of the cost that every token has.
    """

    value: Floats
    max_step_s: Floats
    prefill: Floats
    decode: Floats
    attention_s: Floats


def best_of_each(
    programs: Sequence[Program], least_work: LeastWork, *, window_s: tuple[float, float]
) -> tuple[Best, Best]:
    """The best pace for token goodput and the best for request goodput, over the window."""
    from_s, to_s = window_s
    counted = [each for each in programs if from_s <= each.arrival_s < to_s]
    tokens, requests = (
        best_pace(
            work_of(
                counted,
                least_work,
                partial(demand_of, least_work=least_work, observed_until_s=math.inf, bin_s=BIN_S),
            ),
            least_work,
            length_s=to_s - from_s,
        )
        for demand_of in (token_demand, request_demand)
    )
    return tokens, requests


def best_pace(work: Work, least_work: LeastWork, *, length_s: float) -> Best:
    """The best of NUM_PACES paces over length_s seconds."""
    shortest_s = MIN_FACTOR * max(base_s + token_s for base_s, token_s in least_work.lines)
    paces_s = np.geomspace(shortest_s, max(LONGEST_S, shortest_s), NUM_PACES).tolist()
    candidates = [
        Best(earned(work, least_work, length_s=length_s, step_s=step_s) / length_s, step_s)
        for step_s in paces_s
    ]
    return max(candidates, key=lambda best: best.goodput)


def earned(work: Work, least_work: LeastWork, *, length_s: float, step_s: float) -> float:
    """The most goodput of length_s seconds in which all steps take step_s."""
    is_feasible = work.max_step_s >= step_s
    if not is_feasible.any():
        return 0.0
    steps, tokens = length_s / step_s, work.prefill + work.decode
    limits = [
        (length_s - steps * base_s, token_s * tokens + work.attention_s)
        for base_s, token_s in least_work.lines
    ]
    limits += [(least_work.slots * steps, work.decode), (least_work.step_tokens * steps, tokens)]
    program = LinearProgram()
    served = program.columns(int(is_feasible.sum()), objective=work.value[is_feasible], upper=1.0)
    for limit, used in limits:  # per second, so that long windows are as exact as short ones
        row = program.at_most.new(np.full(1, max(limit, 0.0) / length_s))
        program.at_most.add(row, served, used[is_feasible] / length_s)
    return program.maximise().value


def work_of(programs: Sequence[Program], least_work: LeastWork, demand_of: DemandOf) -> Work:
    """The value and the least work of programs; those that cannot earn are left out."""
    rows = [row for each in programs for row in _row(each, least_work, demand_of(each))]
    return Work(*np.array(rows, dtype=np.float64).reshape(-1, len(Work._fields)).T)


def _row(
    program: Program, least_work: LeastWork, demand: Demand | None
) -> Iterator[tuple[float, ...]]:
    if demand is None:
        return
    upper = [column.upper for column in demand.columns]
    yield (
        sum(column.value * column.upper for column in demand.columns),
        _max_step_s(program, least_work, demand),
        sum(upper[need.column] * need.prefill_tokens for need in demand.needs),
        sum(upper[need.column] * need.decode_tokens for need in demand.needs),
        sum(upper[need.column] * need.attention_s for need in demand.needs),
    )


def _max_step_s(program: Program, least_work: LeastWork, demand: Demand) -> float:
    """The longest duration of a step: the SLO's time / the number of sequential steps."""
    if program.kind is SloKind.LATENCY:
        work = least_work.call(program.stages[0].calls[0])
        last_s = program.ttft_s + program.tbt_s * len(work.decode_s)
        # Lateness is linear in the token's index: all are in time if the first and the last are.
        return min(program.ttft_s / work.prefill_steps, last_s / work.steps)
    tools_s = sum(stage.tool_s for stage in program.stages[1:])
    return (demand.due_s - demand.release_s - tools_s) / demand.columns[0].steps
