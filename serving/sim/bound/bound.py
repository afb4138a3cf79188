"""An upper bound on the goodput of any scheduler: a relaxation to a linear program over time bins.

The relaxation keeps these constraints of a schedule:

- A program may be served by a fraction. A stream (a latency program) earns per token instead, and
  no token counts by more than the fraction of its prompt that is prefilled.
- A program needs prompt tokens, decodes, seconds of attention and context tokens. Each may be
  computed in any bins between its release and its due time, at any rate and in any order. A stage
  is released when the earlier stages and tools have taken their latency on an idle machine. It is
  due early enough for the later stages to end in time on an idle machine. A token of a stream is
  due by TTFT and TBT.
- The steps of a bin cost at most its seconds. A step costs at least as much as each of the two
  lines of StepCost, a decode at least its share of a full batch's base cost, a prompt of n tokens
  at least ceil(n / step_tokens) chunks. Over a bin: decodes <= slots * steps, new tokens <=
  step_tokens * steps, contexts <= KV cache tokens * steps.
- A program of n sequential steps needs n steps between its release and its due time; a fraction x
  of it needs n * x. For several programs the mixing inequalities hold too (mixing_cuts.py).
- Programs that arrived outside the window are not served: they earn nothing and would take
  capacity. A stream's late tokens are not computed.

Any schedule, even one that knows all arrivals and lengths in advance, satisfies these constraints
with the programs that it serves completely. So the optimum is at least its goodput. The optimum is
not reachable: after the window's end the whole machine serves programs that arrived in the window,
and within a bin steps may be long (large batches) for a part of the time and short (long chains of
calls) for the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from serving.sim.bound.demand import Demand, request_demand, token_demand
from serving.sim.bound.least_work import LeastWork
from serving.sim.bound.linear_program import Floats, Ids, LinearProgram
from serving.sim.bound.mixing_cuts import Chains, Cut, violated_cuts
from serving.sim.programs.programs import Program
from serving.step_cost import Machine
from serving.workload_errors import SimError

BIN_S = 10.0
"""Default width of a bin, seconds."""

_TOLERANCE_S = 1e-6  # rounding may put a time on the other side of a bin's edge
_CUT_ROUNDS = 7  # on `mixed` the last one lowers the bound by 0.1 to 0.2%, all of them by 2 to 4%
_SOLVER_TOLERANCE = 1e-6  # relative: how far the solver's optimum may be below the true one
# The solver's tolerances are absolute: these units keep a program's needs neither tiny nor huge.
_PREFILL, _DECODE, _ATTENTION, _CONTEXT = range(4)
_UNITS = (1e3, 1e3, 1.0, 1e6)
_STEP_UNIT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The relaxation's optimal solution. Rates are per second of the window.

    Attributes:
        served: kind -> served share of the programs that arrived in the window.
        prefill_tokens_s, decode_tokens_s: computed for them.
        programs: id -> served fraction; a program that is missing here cannot earn.
    """

    goodput: float
    served: Mapping[str, float]
    prefill_tokens_s: float
    decode_tokens_s: float
    programs: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Goodput that no scheduler exceeds, per second of the window; one optimum per definition."""

    tokens: Optimum
    requests: Optimum

    @property
    def token_goodput(self) -> float:
        """Tokens that meet their SLO, per second, at most."""
        return self.tokens.goodput

    @property
    def request_goodput(self) -> float:
        """Programs that meet their SLO, per second, at most."""
        return self.requests.goodput


def upper_bound(
    programs: Sequence[Program],
    machine: Machine,
    *,
    window_s: tuple[float, float],
    observed_until_s: float = math.inf,
    step_tokens: int = 2048,
    slots: int = 256,
    prefix_caching: bool = False,
    bin_s: float = BIN_S,
) -> Bound:
    """Bound token and request goodput as metrics.summarise counts them.

    Args:
        window_s: (from_s, to_s): programs that arrived in it count, from_s included.
        observed_until_s: work that completes later earns nothing.
        step_tokens, slots: most tokens and sequences of one step.
        prefix_caching: whether calls of a program may share the KV cache of a common prefix.
        bin_s: narrower bins give a tighter bound and take longer: on `mixed`, bins of 5 s give a
            bound 0.5 to 1% lower than 10 s in four times the time. Half the shortest deadline
            suffices.
    Raises:
        SimError: the solver failed.
    """
    from_s, to_s = window_s
    assert from_s < to_s, "an empty window has no rates"
    assert bin_s > 0, "time is divided into bins"
    last_s = min(to_s, math.nextafter(observed_until_s, math.inf))
    counted = [program for program in programs if from_s <= program.arrival_s < last_s]
    least_work = LeastWork(
        cost=machine.step_cost, step_tokens=step_tokens, slots=slots, prefix_caching=prefix_caching
    )
    optima = []
    for demand_of in (token_demand, request_demand):
        demands = {
            program.id: demand
            for program in counted
            for demand in (
                demand_of(program, least_work, observed_until_s=observed_until_s, bin_s=bin_s),
            )
            if demand is not None
        }
        relaxation = _Relaxation(tuple(demands.values()), machine, least_work, bin_s)
        optima.append(_optimum(relaxation, counted, demands, to_s - from_s))
    tokens, requests = optima
    return Bound(tokens=tokens, requests=requests)


class _Grid(NamedTuple):
    """Bins of one width, their edges at multiples of it.

    Attributes:
        lengths_s: shape (bins,): the part of each bin between the first release and the last due
            time.
    """

    start_s: float
    bin_s: float
    lengths_s: Floats

    @classmethod
    def over(cls, release_s: float, due_s: float, bin_s: float) -> _Grid:
        first = math.floor(release_s / bin_s)
        num_bins = max(math.ceil((due_s - _TOLERANCE_S) / bin_s) - first, 1)
        edges_s = np.clip(bin_s * np.arange(first, first + num_bins + 1), release_s, due_s)
        return cls(bin_s * first, bin_s, np.diff(edges_s) + 2 * _TOLERANCE_S)

    def first_bins(self, times_s: Floats) -> Ids:
        """The first bins in which work that is released at these times may be done."""
        return self._bins(times_s + _TOLERANCE_S)

    def last_bins(self, times_s: Floats) -> Ids:
        """The last bins in which work that is due at these times may be done."""
        return self._bins(times_s - _TOLERANCE_S)

    def _bins(self, times_s: Floats) -> Ids:
        bins = np.floor((times_s - self.start_s) / self.bin_s).astype(np.int64)
        return np.clip(bins, 0, len(self.lengths_s) - 1)


class _Relaxation:
    """The linear program of one definition of goodput."""

    def __init__(
        self, demands: Sequence[Demand], machine: Machine, least_work: LeastWork, bin_s: float
    ) -> None:
        self._demands = demands
        self._program = LinearProgram()
        if not demands:
            return
        columns = [column for demand in demands for column in demand.columns]
        self._program.columns(
            len(columns),
            objective=[column.value for column in columns],
            upper=[column.upper for column in columns],
        )
        counts = [len(demand.columns) for demand in demands]
        self._first = np.cumsum([0, *counts[:-1]])
        self._needs = np.array(
            [
                (first + need.column, *need[1:])
                for first, demand in zip(self._first, demands, strict=True)
                for need in demand.needs
            ],
            dtype=np.float64,
        )
        self._grid = _Grid.over(self._needs[:, 1].min(), self._needs[:, 2].max(), bin_s)
        self._add_capacity(machine, least_work)
        self._add_work()
        self._add_chains()

    def solve(self) -> tuple[float, Floats, Floats]:
        """The largest goodput; the first column of each demand; (prefilled, decoded) tokens."""
        if not self._demands:
            return 0.0, np.zeros(0), np.zeros(2)
        value, columns = self._program.maximise()
        average = columns
        for _ in range(_CUT_ROUNDS):
            if not self._add_cuts(columns, average):
                break
            try:
                value, columns = self._program.maximise()
            except SimError:  # the optimum without these cuts is a bound too
                break
            average = (average + columns) / 2
        computed_tokens = columns[self._needs[:, 0].astype(np.int64)] @ self._needs[:, 3:5]
        return value * (1 + _SOLVER_TOLERANCE), columns[self._first], computed_tokens

    def _add_capacity(self, machine: Machine, least_work: LeastWork) -> None:
        """Limits of each bin's steps; `_uses` says which sort of work counts in which row."""
        rows = self._program.at_most
        num_bins = len(self._grid.lengths_s)
        self._steps = self._program.columns(num_bins)
        self._uses: list[list[tuple[Ids, float]]] = [[] for _ in _UNITS]
        for step_s, token_s in least_work.lines:
            line = rows.new(self._grid.lengths_s)
            rows.add(line, self._steps, step_s)
            self._uses[_PREFILL].append((line, token_s * _UNITS[_PREFILL]))
            self._uses[_DECODE].append((line, token_s * _UNITS[_DECODE]))
            self._uses[_ATTENTION].append((line, _UNITS[_ATTENTION]))
        for limit, unit, kinds in (
            (least_work.slots, _UNITS[_DECODE], (_DECODE,)),
            (least_work.step_tokens, _UNITS[_DECODE], (_PREFILL, _DECODE)),
            (machine.kv_tokens, _UNITS[_CONTEXT], (_CONTEXT,)),
        ):
            row = rows.new(np.zeros(num_bins))
            rows.add(row, self._steps, -limit / unit)
            for kind in kinds:
                self._uses[kind].append((row, _UNITS[kind] / unit))

    def _add_work(self) -> None:
        """Every need is met within its bins.

        Needs that are released in the same bin form one flow for each sort of work. Backwards from
        the last due time, work that a bin does not do is carried to the bin before it.
        """
        first_bins = self._grid.first_bins(self._needs[:, 1])
        last_bins = np.maximum(self._grid.last_bins(self._needs[:, 2]), first_bins)
        columns = self._needs[:, 0].astype(np.int64)
        for first_bin in np.unique(first_bins):
            for kind, unit in enumerate(_UNITS):
                work = self._needs[:, 3 + kind] / unit
                needs = np.flatnonzero((first_bins == first_bin) & (work > 0))
                if len(needs):
                    num_bins = int(last_bins[needs].max() - first_bin) + 1
                    flow = self._program.columns(num_bins)
                    carried = self._program.columns(num_bins - 1)
                    rows = self._program.exactly.new(np.zeros(num_bins))
                    add = self._program.exactly.add
                    add(rows, flow, 1.0)
                    add(rows[1:], carried, 1.0)
                    add(rows[:-1], carried, -1.0)
                    add(rows[last_bins[needs] - first_bin], columns[needs], -work[needs])
                    for capacity, used in self._uses[kind]:
                        bins = capacity[first_bin : first_bin + num_bins]
                        self._program.at_most.add(bins, flow, used)

    def _add_chains(self) -> None:
        """A program's sequential steps; a stream's tokens are limited by its prefilled fraction."""
        rows = self._program.at_most
        first_bins = self._grid.first_bins(np.array([each.release_s for each in self._demands]))
        last_bins = self._grid.last_bins(np.array([each.due_s for each in self._demands]))
        last_bins = np.maximum(first_bins, last_bins)
        for demand, first, first_bin, last_bin in zip(
            self._demands, self._first, first_bins, last_bins, strict=True
        ):
            columns = first + np.arange(len(demand.columns))
            chain = rows.new(np.zeros(1))
            rows.add(chain, columns, [each.steps / _STEP_UNIT for each in demand.columns])
            rows.add(chain, self._steps[first_bin : last_bin + 1], -1 / _STEP_UNIT)
            others = rows.new(np.zeros(len(columns) - 1))
            rows.add(others, columns[1:], 1.0)
            rows.add(others, first, [-each.upper for each in demand.columns[1:]])
        whole = np.array([len(each.columns) == 1 for each in self._demands])
        steps = np.array([each.columns[0].steps for each in self._demands])
        self._chains = Chains(self._first[whole], steps[whole], first_bins[whole], last_bins[whole])

    def _add_cuts(self, columns: Floats, average: Floats) -> bool:
        """Add the cuts that the optimum violates; returns whether there are any.

        Successive optima are different corners of the polytope. Cuts that the average of the
        earlier ones violates are added too, since a later optimum would violate them: on `mixed`
        six rounds with them tighten the bound as much as nine without.
        """
        violated = self._violated(columns)
        if violated:
            rows = self._program.at_most
            for cut in (violated | self._violated(average)).values():
                row = rows.new(np.zeros(1))
                rows.add(row, cut.columns, cut.factors / _STEP_UNIT)
                rows.add(row, self._steps[cut.first_bin : cut.last_bin + 1], -1 / _STEP_UNIT)
        return bool(violated)

    def _violated(self, columns: Floats) -> dict[tuple[int, ...], Cut]:
        """The violated cuts, by their bins and columns."""
        served, steps = columns[self._chains.columns], columns[self._steps]
        return {
            (cut.first_bin, cut.last_bin, *cut.columns.tolist()): cut
            for cut in violated_cuts(self._chains, served, steps)
        }


def _optimum(
    relaxation: _Relaxation,
    counted: Sequence[Program],
    demands: Mapping[str, Demand],
    length_s: float,
) -> Optimum:
    value, fractions, (prefilled, decoded) = relaxation.solve()
    arrived = Counter(program.kind.value for program in counted)
    served = Counter[str]()
    for demand, fraction in zip(demands.values(), fractions, strict=True):
        served[demand.kind.value] += fraction
    return Optimum(
        goodput=value / length_s,
        served={kind: float(served[kind]) / arrived[kind] for kind in sorted(arrived)},
        prefill_tokens_s=float(prefilled) / length_s,
        decode_tokens_s=float(decoded) / length_s,
        programs=dict(zip(demands, map(float, fractions), strict=True)),
    )
