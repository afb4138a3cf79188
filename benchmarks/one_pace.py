"""What a machine could earn in the long run if all its steps took equally long: an estimate.

The upper bound (serving/sim/bound.py) serves halves of programs, which do with half their steps in
sequence, so that it has long steps for the crowd and short ones for long chains at once. This has
not: at each pace only those are served that could be in time alone at steps of just that length,
and of them the best that the window's seconds pay for, at the least that their work can cost. All
lengths are known, nothing waits, all work lies within the window, and the last one is served in
part: no real schedule has it so good. It is no bound, because steps need not be equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.sim.demand import Demand, request_demand, token_demand
from serving.sim.least_work import Prices
from serving.sim.linear_program import LinearProgram
from serving.sim.programs import Program

Floats = NDArray[np.float64]
DemandOf = Callable[[Program], Demand | None]

NUM_PACES, SHORTEST, LONGEST_S = 40, 1.02, 0.2
"""So many paces are tried, from this many times what a step of one token costs."""

WHOLE_STREAM_S = 1e9
"""So long bins hold all tokens of a stream."""


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

    def tokens(program: Program) -> Demand | None:
        return token_demand(program, prices, observed_until_s=np.inf, bin_s=WHOLE_STREAM_S)

    def requests(program: Program) -> Demand | None:
        return request_demand(program, prices, observed_until_s=np.inf, bin_s=WHOLE_STREAM_S)

    by_tokens, by_requests = (
        best_pace(work_of(counted, demand_of), prices, to_s - from_s)
        for demand_of in (tokens, requests)
    )
    return by_tokens, by_requests


def best_pace(work: Work, prices: Prices, length_s: float) -> Best:
    """The pace at which most is earned in so many seconds; of equal ones the shortest."""
    shortest_s = SHORTEST * max(base_s + token_s for base_s, token_s in prices.lines)
    paces = np.geomspace(shortest_s, max(LONGEST_S, 2 * shortest_s), NUM_PACES).tolist()
    found = [Best(earned(work, prices, length_s, pace) / length_s, pace) for pace in paces]
    return max(found, key=lambda best: best.goodput)


def earned(work: Work, prices: Prices, length_s: float, step_s: float) -> float:
    """Goodput of so many seconds whose steps all take step_s."""
    able = work.bearable_s >= step_s
    if not able.any():
        return 0.0
    steps = length_s / step_s
    tokens = work.prefill + work.decode
    limits = [
        (length_s - steps * base_s, token_s * tokens + work.attention_s)
        for base_s, token_s in prices.lines
    ]
    limits += [(prices.slots * steps, work.decode), (prices.step_tokens * steps, tokens)]
    program = LinearProgram()
    served = program.columns(int(able.sum()), worth=work.worth[able], most=1.0)
    for most, used in limits:
        row = program.at_most.new(np.full(1, max(most, 0.0) / length_s))
        program.at_most.add(row, served, used[able] / length_s)
    return program.maximise().value


def work_of(programs: Sequence[Program], demand_of: DemandOf) -> Work:
    """What these programs earn and cost; those that cannot earn alone are left out."""
    rows = [row for each in programs for row in _row(each, demand_of(each))]
    return Work(*np.array(rows, dtype=np.float64).reshape(-1, len(Work._fields)).T)


def _row(program: Program, demand: Demand | None) -> Iterator[tuple[float, ...]]:
    if demand is None:
        return
    most = [column.most for column in demand.columns]
    yield (
        sum(column.worth * column.most for column in demand.columns),
        _bearable_s(program, demand),
        sum(most[need.column] * need.prefill_tokens for need in demand.needs),
        sum(most[need.column] * need.decode_tokens for need in demand.needs),
        sum(most[need.column] * need.attention_s for need in demand.needs),
    )


def _bearable_s(program: Program, demand: Demand) -> float:
    """How long each step may take: of a stream its TBT, else what the deadline leaves for each."""
    if program.deadline_s is None:
        return program.tbt_s
    tools_s = sum(stage.tool_s for stage in program.stages[1:])
    return (demand.due_s - demand.release_s - tools_s) / demand.columns[0].steps
