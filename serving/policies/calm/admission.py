"""Admission control: which programs can be in time together, by value per second of demand.

A program is admitted if, at each of a number of horizons, the machine has time for all demand due
by then: that of the program, of the programs admitted before it, and of better work that is still
expected to arrive. The last part is the price of admission: at twice the capacity only the better
half of the programs is begun, and few of them are displaced later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.calm.program_demand import Calls, ProgramDemand
from serving.policies.calm.step_duration import StepDuration
from serving.requests import Flags, Floats, Ints
from serving.view import StepView

HORIZONS_S: Floats = np.round(np.geomspace(0.05, 1000.0, 50), 3)
"""Seconds from now at which demand is compared with capacity; an even number of them."""

MIN_SPAN_S = 1e-3
"""Shortest time, in seconds, over which demand is spread."""

BLOCK_SIZE = 128
"""Programs that are tested together; if none of a block fits, no program of lower density is
tested."""


class DemandCurves(NamedTuple):
    """The machine time that each program demands, and by when, (m,) each.

    Tokens are generated one after the other, so a program that leaves all its work to the end is
    late. A program demands nothing while it can still pause and be in time, and its share of every
    second from then until its end. A stream demands its prefill by its next token, then a token
    every TBT.

    Attributes:
        due_s: seconds until the first demand is due, at least 0.
        first_s: machine seconds that are due then.
        rest_s: machine seconds that are due evenly during the `lasts_s` seconds after.
        lasts_s: see rest_s.
    """

    due_s: Floats
    first_s: Floats
    rest_s: Floats
    lasts_s: Floats

    def by_horizon(self, programs: Ints) -> Floats:
        """Machine seconds that each of k programs demands by each horizon: (k, horizons)."""
        due_s, first_s, rest_s, lasts_s = (column[programs][:, None] for column in self)
        by: Floats = HORIZONS_S - due_s
        is_due = by >= 0.0
        by /= lasts_s
        np.minimum(by, 1.0, out=by)
        by *= rest_s
        by += first_s
        by *= is_due
        return by


class ExpectedDemand(NamedTuple):
    """The demand of programs still to arrive, if arrivals continue at the recent rate.

    Attributes:
        density: value / demand of each recent arrival with value, highest first, (k,).
        by_horizon: row i: machine seconds that the first i of them will demand by each horizon,
            (k + 1, horizons).
        soon_s: row i: seconds that the first i of them will add to the steps of the next second if
            all run as soon as they arrive, (k + 1,).
    """

    density: Floats
    by_horizon: Floats
    soon_s: Floats

    def above(self, density: Floats) -> Floats:
        """Expected demand of a higher density than each of these: (n, horizons)."""
        return self.by_horizon[self._num_above(density)]

    def soon_above(self, density: Floats) -> Floats:
        """What arrivals of a higher density than each of these take in the next second: (n,)."""
        return self.soon_s[self._num_above(density)]

    def without_demand(self) -> ExpectedDemand:
        """As if nothing were to arrive."""
        return ExpectedDemand(
            self.density, np.zeros_like(self.by_horizon), np.zeros_like(self.soon_s)
        )

    def _num_above(self, density: Floats) -> Ints:
        return np.searchsorted(-self.density, -density, side="left")


def expected_demand(
    view: StepView, programs: ProgramDemand, value: Floats, step: StepDuration
) -> ExpectedDemand:
    """The demand to expect, computed from the recent arrivals.

    The whole demand of an expected program counts at the middle of the time in which it would run
    at the latest. So it does not count by horizons before that time.

    Args:
        programs: the programs of `view.arrivals`.
        value: of each program, (m,).
        step: the duration of steps.
    """
    arrivals, demand_s = view.arrivals, step.with_fixed_cost(programs.demand_s(view.model))
    density = value / demand_s
    order = np.flatnonzero(density > 0)
    order = order[np.argsort(-density[order], kind="stable")]
    isolated_latency_s = programs.isolated_latency_s(step.expected_s)
    streamed_s = programs.tokens * arrivals.tbt_s
    until_deadline_s = arrivals.final_s - arrivals.arrival_s
    allowed_s = np.where(programs.is_stream, arrivals.ttft_s + streamed_s, until_deadline_s)
    runs_s = np.where(programs.is_stream, streamed_s, np.minimum(isolated_latency_s, allowed_s))
    middle_s = allowed_s - 0.5 * runs_s
    by_horizon = np.empty((len(order) + 1, len(HORIZONS_S)))
    by_horizon[0] = 0.0
    wanted = by_horizon[1:]
    np.subtract(HORIZONS_S, middle_s[order][:, None], out=wanted)
    np.maximum(wanted, 0.0, out=wanted)
    wanted *= (demand_s[order] / view.arrivals_s)[:, None]
    _accumulate(wanted)
    work_s = programs.demand_s(view.model)
    first_s = np.minimum(programs.first_prompts_s * programs.counts, work_s)
    latency_s = np.where(programs.is_stream, streamed_s, isolated_latency_s)
    soon_s = first_s + (work_s - first_s) * _share_of_next_second(latency_s)
    return ExpectedDemand(
        density[order],
        by_horizon,
        np.append(0.0, np.cumsum(soon_s[order])) / view.arrivals_s,
    )


def _share_of_next_second(latency_s: Floats) -> Floats:
    """The mean share of even work of this duration that is done in the second of its arrival."""
    return np.where(latency_s < 1.0, 1.0 - latency_s / 2, 0.5 / np.maximum(latency_s, 1.0))


def admit(
    curves: DemandCurves, density: Floats, expected: ExpectedDemand, *, utilisation: float
) -> tuple[Flags, float]:
    """Admit programs greedily by value per second of demand, the highest first.

    Args:
        density: value / demand of each program, (m,); programs with 0 are not admitted.
        utilisation: the share of machine time that is allocated.
    Returns:
        flags of the admitted, (m,); and the share of machine time that they and all expected
        programs need to be in time: the largest over the horizons, above 1 if time is short.
    """
    order = np.flatnonzero(density > 0)
    order = order[np.argsort(-density[order], kind="stable")]
    capacity_s = utilisation * HORIZONS_S
    taken = np.zeros(len(HORIZONS_S))
    admitted = np.zeros(len(density), dtype=bool)
    for begin in range(0, len(order), BLOCK_SIZE):
        block = order[begin : begin + BLOCK_SIZE]
        wanted = curves.by_horizon(block)
        total = taken + wanted.sum(axis=0)
        # The last program of a block has the least capacity: if the total fits that, all fit.
        if (total <= capacity_s - expected.above(density[block[-1:]])).all():
            admitted[block], taken = True, total
            continue
        fits, taken = _greedy(wanted, capacity_s - expected.above(density[block]), taken)
        admitted[block[fits]] = True
        if not fits.any():
            break
    return admitted, float(((taken + expected.by_horizon[-1]) / HORIZONS_S).max())


def _greedy(wanted: Floats, capacity: Floats, taken: Floats) -> tuple[Flags, Floats]:
    """Flags of the programs that fit after those before them that fit, and the time taken then.

    Args:
        wanted, capacity: (k, horizons) of each program, best first.
        taken: (horizons,), the time taken already.
    """
    capacity = np.where(wanted > 0, capacity, np.inf)  # no demand by a horizon: no limit there
    fits = np.zeros(len(wanted), dtype=bool)
    left = np.arange(len(wanted))
    while len(left):
        # The time taken only grows: a program that does not fit now never will.
        able = np.flatnonzero((taken + wanted <= capacity).all(axis=1))
        left, wanted, capacity = left[able], wanted.take(able, axis=0), capacity.take(able, axis=0)
        total = wanted.copy()
        _accumulate(total)
        total += taken
        fit = (total <= capacity).all(axis=1)
        num_fit = len(left) if fit.all() else int(np.argmin(fit))
        if num_fit:
            fits[left[:num_fit]] = True
            taken = total[num_fit - 1]
        rest = slice(num_fit + 1, None)
        left, wanted, capacity = left[rest], wanted[rest], capacity[rest]
    return fits, taken


def _accumulate(wanted: Floats) -> None:
    """Cumulative sums over the rows of a contiguous array (k, horizons), in place.

    Two horizons are summed as the parts of one complex number: the sums of a column depend on each
    other, so half as many columns take half the time, with the same result.
    """
    pairs = wanted.view(np.complex128)
    np.cumsum(pairs, axis=0, out=pairs)


def demand_curves_of(
    view: StepView,
    calls: Calls,
    programs: ProgramDemand,
    demand_s: Floats,
    due_s: Floats,
    step: StepDuration,
) -> DemandCurves:
    """The demand curves of the programs of the view.

    Args:
        demand_s: machine seconds of each program, (m,).
        due_s: when each program must run without a pause; of a stream, when its next token is due,
            (m,).
        step: the duration of steps.
    """
    requests, model, first = view.requests, view.model, programs.first
    is_stream, tokens = programs.is_stream, calls.tokens[first]
    prompt_s = calls.prompt_s[first]
    token_s = model.token_s + model.sequence_s + model.context_s * calls.context[first]
    token_s = np.maximum(token_s, 1e-12)
    # A stream's first token is due with its prefill, the others later.
    first_share = (prompt_s + token_s) / (prompt_s + np.maximum(tokens, 1.0) * token_s)
    first_s = demand_s * np.where(is_stream, first_share, 0.0)
    # A token is there at the end of its step: a prompt must be in the step before at the latest.
    last_step_s = np.where(is_stream & (calls.uncomputed[first] > 0), step.step_s, 0.0)
    ahead_s = due_s - view.now_s - last_step_s
    # A program that is past its due time has only the rest of its latency left.
    left_s = programs.isolated_latency_s(step.expected_s) + np.minimum(ahead_s, 0.0)
    lasts_s = np.where(is_stream, (tokens - 1.0) * requests.tbt_s[first], left_s)
    return DemandCurves(
        np.maximum(ahead_s, 0.0), first_s, demand_s - first_s, np.maximum(lasts_s, MIN_SPAN_S)
    )
