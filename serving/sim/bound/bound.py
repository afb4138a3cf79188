"""More goodput than any scheduler can earn, however much it knows: an upper bound by relaxation.

A schedule is laid over time bins, and only what these sums say of it is kept:

- A program is served by a fraction. A stream earns token by token instead, of a prompt that is
  read by a fraction.
- Of what it needs, prompt tokens, decodes, seconds of attention and contexts may each be done in
  any bins between its release and its due, at any rate and in any order. A stage is released when
  the former ones and the tools have taken their least time alone on the machine, and due so early
  that the later ones could still end in time; a token of a stream is due by its own promise.
- A bin has as many steps as its seconds pay for. A step costs at least as much as each of the two
  lines of StepCost, a decode at least its share of a full batch's base, a prompt at least as many
  chunks as it takes whole steps. Over a bin: decodes <= slots * steps, new tokens <= step_tokens *
  steps, contexts <= KV cache * steps.
- A program of n steps in sequence needs n steps between its release and its due, and half of it
  half as many. Of several, it serves what mixtures of whole choices could (chain_cuts.py).
- Programs that arrived outside the window are not served at all: they earn nothing, and could
  only stand in the way. A stream's late tokens are not computed.

Every schedule, one that knows all arrivals and lengths too, meets these rows with what it serves
whole, so that the best of them all earns at least as much. It is more than can be reached: after
the window's end the machine is all for what arrived in it, and steps may be long for the crowd in
one half of the time and short for long chains of calls in the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from serving.sim.bound.demand import Demand, request_demand, token_demand
from serving.sim.bound.least_work import Prices
from serving.sim.bound.linear_program import Floats, Ids, LinearProgram
from serving.sim.bound.mixing_cuts import Chains, Cut, broken_cuts
from serving.sim.programs.programs import Program
from serving.step_cost import Machine
from serving.workload_errors import SimError

BIN_S = 10.0

_SLACK_S = 1e-6  # what rounding may put on the other side of a bin's edge
_CUT_ROUNDS = 7  # the last one lowers the bound by 0.1 to 0.2% on `mixed`, all together by 2 to 4%
_SOLVER_SLACK = 1e-6  # relative: the solver's optimum may lie that far below the true one
# Needs in units in which a program's are neither tiny nor huge: for the solver's tolerances.
_PREFILL, _DECODE, _ATTENTION, _CONTEXT = range(4)
_UNITS = (1e3, 1e3, 1.0, 1e6)
_STEP_UNIT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """What the relaxation does where it earns most. Rates are per second of the window.

    Attributes:
        served: by kind, the share of its programs that arrived in the window.
        prefill_tokens_s, decode_tokens_s: computed for them.
        programs: id -> the fraction of it that is served; the others not at all.
    """

    goodput: float
    served: Mapping[str, float]
    prefill_tokens_s: float
    decode_tokens_s: float
    programs: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What no scheduler exceeds, per second of the window; each definition by a plan of its own."""

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
        window_s: (from_s, to_s): the programs that arrived in it count, from_s included.
        observed_until_s: what happens later earns nothing.
        step_tokens, slots: most tokens and sequences of one step.
        prefix_caching: whether calls of a program may share the KV cache of a common prefix.
        bin_s: narrower bins bound tighter and take longer: on `mixed`, 5 s bind 0.5 to 1% tighter
            than 10 s and take four times as long. Half the shortest promise will do.
    Raises:
        SimError: the solver gave up.
    """
    from_s, to_s = window_s
    assert from_s < to_s, "an empty window has no rates"
    assert bin_s > 0, "time is divided into bins"
    last_s = min(to_s, math.nextafter(observed_until_s, math.inf))
    counted = [program for program in programs if from_s <= program.arrival_s < last_s]
    prices = Prices(
        cost=machine.step_cost, step_tokens=step_tokens, slots=slots, prefix_caching=prefix_caching
    )
    found = []
    for demand_of in (token_demand, request_demand):
        demands = {
            program.id: demand
            for program in counted
            for demand in (
                demand_of(program, prices, observed_until_s=observed_until_s, bin_s=bin_s),
            )
            if demand is not None
        }
        relaxed = _Relaxation(tuple(demands.values()), machine, prices, bin_s)
        found.append(_optimum(relaxed, counted, demands, to_s - from_s))
    tokens, requests = found
    return Bound(tokens=tokens, requests=requests)


class _Grid(NamedTuple):
    """Bins of one width, their edges at multiples of it.

    Attributes:
        lengths_s: shape (bins,): of each, what lies between the first release and the last due.
    """

    start_s: float
    bin_s: float
    lengths_s: Floats

    @classmethod
    def over(cls, release_s: float, due_s: float, bin_s: float) -> _Grid:
        first = math.floor(release_s / bin_s)
        num_bins = max(math.ceil((due_s - _SLACK_S) / bin_s) - first, 1)
        edges_s = np.clip(bin_s * np.arange(first, first + num_bins + 1), release_s, due_s)
        return cls(bin_s * first, bin_s, np.diff(edges_s) + 2 * _SLACK_S)

    def released(self, times_s: Floats) -> Ids:
        """The first bin in which something may be done."""
        return self._bins(times_s + _SLACK_S)

    def due(self, times_s: Floats) -> Ids:
        """The last bin in which it may."""
        return self._bins(times_s - _SLACK_S)

    def _bins(self, times_s: Floats) -> Ids:
        bins = np.floor((times_s - self.start_s) / self.bin_s).astype(np.int64)
        return np.clip(bins, 0, len(self.lengths_s) - 1)


class _Relaxation:
    """The linear program of one definition of goodput."""

    def __init__(
        self, demands: Sequence[Demand], machine: Machine, prices: Prices, bin_s: float
    ) -> None:
        self._demands = demands
        self._program = LinearProgram()
        if not demands:
            return
        columns = [column for demand in demands for column in demand.columns]
        self._program.columns(
            len(columns),
            worth=[column.worth for column in columns],
            most=[column.most for column in columns],
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
        self._add_capacity(machine, prices)
        self._add_work()
        self._add_chains()

    def solve(self) -> tuple[float, Floats, Floats]:
        """The greatest goodput; the first column of each demand; tokens (prefilled, decoded)."""
        if not self._demands:
            return 0.0, np.zeros(0), np.zeros(2)
        value, columns = self._program.maximise()
        average = columns
        for _ in range(_CUT_ROUNDS):
            if not self._add_cuts(columns, average):
                break
            try:
                value, columns = self._program.maximise()
            except SimError:  # what was found without these cuts is a bound too
                break
            average = (average + columns) / 2
        done = columns[self._needs[:, 0].astype(np.int64)] @ self._needs[:, 3:5]
        return value * (1 + _SOLVER_SLACK), columns[self._first], done

    def _add_capacity(self, machine: Machine, prices: Prices) -> None:
        """What the bins' steps have room for; `_uses` says which work counts in which row."""
        rows = self._program.at_most
        num_bins = len(self._grid.lengths_s)
        self._steps = self._program.columns(num_bins)
        self._uses: list[list[tuple[Ids, float]]] = [[] for _ in _UNITS]
        for step_s, token_s in prices.lines:
            line = rows.new(self._grid.lengths_s)
            rows.add(line, self._steps, step_s)
            self._uses[_PREFILL].append((line, token_s * _UNITS[_PREFILL]))
            self._uses[_DECODE].append((line, token_s * _UNITS[_DECODE]))
            self._uses[_ATTENTION].append((line, _UNITS[_ATTENTION]))
        for most, unit, kinds in (
            (prices.slots, _UNITS[_DECODE], (_DECODE,)),
            (prices.step_tokens, _UNITS[_DECODE], (_PREFILL, _DECODE)),
            (machine.kv_tokens, _UNITS[_CONTEXT], (_CONTEXT,)),
        ):
            room = rows.new(np.zeros(num_bins))
            rows.add(room, self._steps, -most / unit)
            for kind in kinds:
                self._uses[kind].append((room, _UNITS[kind] / unit))

    def _add_work(self) -> None:
        """Every need is met within its bins.

        Needs that are released in the same bin are one flow of each sort of work: going back from
        the last due, what is not yet done is carried to the bin before.
        """
        released = self._grid.released(self._needs[:, 1])
        due = np.maximum(self._grid.due(self._needs[:, 2]), released)
        columns = self._needs[:, 0].astype(np.int64)
        for begin in np.unique(released):
            for kind, unit in enumerate(_UNITS):
                work = self._needs[:, 3 + kind] / unit
                mine = np.flatnonzero((released == begin) & (work > 0))
                if len(mine):
                    num_bins = int(due[mine].max() - begin) + 1
                    flow = self._program.columns(num_bins)
                    carried = self._program.columns(num_bins - 1)
                    rows = self._program.exactly.new(np.zeros(num_bins))
                    add = self._program.exactly.add
                    add(rows, flow, 1.0)
                    add(rows[1:], carried, 1.0)
                    add(rows[:-1], carried, -1.0)
                    add(rows[due[mine] - begin], columns[mine], -work[mine])
                    for capacity, used in self._uses[kind]:
                        self._program.at_most.add(capacity[begin : begin + num_bins], flow, used)

    def _add_chains(self) -> None:
        """Steps in sequence, and no token of a stream without as much of its prompt."""
        rows = self._program.at_most
        begins = self._grid.released(np.array([each.release_s for each in self._demands]))
        ends = self._grid.due(np.array([each.due_s for each in self._demands]))
        ends = np.maximum(begins, ends)
        for demand, first, begin, end in zip(self._demands, self._first, begins, ends, strict=True):
            columns = first + np.arange(len(demand.columns))
            chain = rows.new(np.zeros(1))
            rows.add(chain, columns, [each.steps / _STEP_UNIT for each in demand.columns])
            rows.add(chain, self._steps[begin : end + 1], -1 / _STEP_UNIT)
            others = rows.new(np.zeros(len(columns) - 1))
            rows.add(others, columns[1:], 1.0)
            rows.add(others, first, [-each.most for each in demand.columns[1:]])
        whole = np.array([len(each.columns) == 1 for each in self._demands])
        steps = np.array([each.columns[0].steps for each in self._demands])
        self._chains = Chains(self._first[whole], steps[whole], begins[whole], ends[whole])

    def _add_cuts(self, columns: Floats, average: Floats) -> bool:
        """Add the cuts that the optimum breaks; whether there are any.

        Each optimum lies on another corner. What the average of the former ones breaks would be
        broken sooner or later: on `mixed` six rounds with it do what nine do without.
        """
        found = self._broken(columns)
        if found:
            rows = self._program.at_most
            for cut in (found | self._broken(average)).values():
                row = rows.new(np.zeros(1))
                rows.add(row, cut.columns, cut.factors / _STEP_UNIT)
                rows.add(row, self._steps[cut.begin : cut.end + 1], -1 / _STEP_UNIT)
        return bool(found)

    def _broken(self, columns: Floats) -> dict[tuple[int, ...], Cut]:
        """The cuts that are broken, by their bins and columns."""
        served, steps = columns[self._chains.columns], columns[self._steps]
        return {
            (cut.begin, cut.end, *cut.columns.tolist()): cut
            for cut in broken_cuts(self._chains, served, steps)
        }


def _optimum(
    relaxed: _Relaxation,
    counted: Sequence[Program],
    demands: Mapping[str, Demand],
    length_s: float,
) -> Optimum:
    value, fractions, (prefilled, decoded) = relaxed.solve()
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
