"""What a machine could earn in the long run if all its steps took equally long: an estimate.

The upper bound (serving/sim/bound/bound.py) may have long steps for the crowd in one half of the
time, short ones for long chains in the other, and halves of the programs of both. This may not:
at each pace only those are served that could be in time alone at steps of just that length, and
of them those that earn most in the window's seconds, at the least that their work can cost.

It is easier than any schedule has it: all lengths are known, nothing waits, work may be done before
it arrives, the KV cache is endless, and a few programs are served in part. It is no bound all the
same. Steps need not be equally long, and what is done after the window's end is left out; so the
window must be long against the promises.
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
from serving.sim.bound.least_work import Prices
from serving.sim.bound.linear_program import LinearProgram
from serving.sim.programs.programs import Program
from serving.slo import SloKind

Floats = NDArray[np.float64]
DemandOf = Callable[[Program], Demand | None]

NUM_TRIED, LEAST_LONGER, LONGEST_S = 40, 1.02, 0.2
"""So many paces are tried: from this many times a step of one token to steps of this length."""


class Best(NamedTuple):
    """The most that one pace earns: goodput per second of the window, and seconds of a step."""

    goodput: float
    step_s: float


class Work(NamedTuple):
    """Programs as rows, (m,) each.

    Attributes:
        worth: goodput of the whole.
        bearable_s: the longest steps at which it is in time alone.
        prefill, decode: tokens.
        attention_s: seconds on top of what a token costs anywhere.
    """

    worth: Floats
    bearable_s: Floats
    prefill: Floats
    decode: Floats
    attention_s: Floats


def best_of_each(
    programs: Sequence[Program], prices: Prices, *, window_s: tuple[float, float]
) -> tuple[Best, Best]:
    """The best pace for tokens and the best for requests, for the programs of the window."""
    from_s, to_s = window_s
    counted = [each for each in programs if from_s <= each.arrival_s < to_s]
    tokens, requests = (
        best_pace(
            work_of(
                counted,
                prices,
                partial(demand_of, prices=prices, observed_until_s=math.inf, bin_s=BIN_S),
            ),
            prices,
            length_s=to_s - from_s,
        )
        for demand_of in (token_demand, request_demand)
    )
    return tokens, requests


def best_pace(work: Work, prices: Prices, *, length_s: float) -> Best:
    """The pace of those tried at which most is earned in so many seconds."""
    shortest_s = LEAST_LONGER * max(base_s + token_s for base_s, token_s in prices.lines)
    tried = np.geomspace(shortest_s, max(LONGEST_S, shortest_s), NUM_TRIED).tolist()
    found = [
        Best(earned(work, prices, length_s=length_s, step_s=step_s) / length_s, step_s)
        for step_s in tried
    ]
    return max(found, key=lambda best: best.goodput)


def earned(work: Work, prices: Prices, *, length_s: float, step_s: float) -> float:
    """Goodput of so many seconds whose steps all take step_s."""
    able = work.bearable_s >= step_s
    if not able.any():
        return 0.0
    steps, tokens = length_s / step_s, work.prefill + work.decode
    limits = [
        (length_s - steps * base_s, token_s * tokens + work.attention_s)
        for base_s, token_s in prices.lines
    ]
    limits += [(prices.slots * steps, work.decode), (prices.step_tokens * steps, tokens)]
    chosen = LinearProgram()
    served = chosen.columns(int(able.sum()), worth=work.worth[able], most=1.0)
    for most, used in limits:  # by the second, so that long windows are as exact as short ones
        row = chosen.at_most.new(np.full(1, max(most, 0.0) / length_s))
        chosen.at_most.add(row, served, used[able] / length_s)
    return chosen.maximise().value


def work_of(programs: Sequence[Program], prices: Prices, demand_of: DemandOf) -> Work:
    """What these programs earn and cost; those that cannot earn alone are left out."""
    rows = [row for each in programs for row in _row(each, prices, demand_of(each))]
    return Work(*np.array(rows, dtype=np.float64).reshape(-1, len(Work._fields)).T)


def _row(program: Program, prices: Prices, demand: Demand | None) -> Iterator[tuple[float, ...]]:
    if demand is None:
        return
    most = [column.most for column in demand.columns]
    yield (
        sum(column.worth * column.most for column in demand.columns),
        _bearable_s(program, prices, demand),
        sum(most[need.column] * need.prefill_tokens for need in demand.needs),
        sum(most[need.column] * need.decode_tokens for need in demand.needs),
        sum(most[need.column] * need.attention_s for need in demand.needs),
    )


def _bearable_s(program: Program, prices: Prices, demand: Demand) -> float:
    """How long each step may take: what the promise leaves for each of those in sequence."""
    if program.kind is SloKind.LATENCY:
        work = prices.call(program.stages[0].calls[0])
        last_s = program.ttft_s + program.tbt_s * len(work.decode_s)
        # Lateness grows evenly from the first token to the last: in time are all, if these two.
        return min(program.ttft_s / work.prefill_steps, last_s / work.steps)
    tools_s = sum(stage.tool_s for stage in program.stages[1:])
    return (demand.due_s - demand.release_s - tools_s) / demand.columns[0].steps
