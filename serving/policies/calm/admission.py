"""Who can be in time together: programs admitted by value per second of the machine.

A program is admitted if, at every moment ahead, what is due by then fits into what the machine can
do: for itself, for those admitted before it, and for what is still to arrive and will be worth
more. The last part is a price: at twice the load only the better half is begun, and little of what
is begun is displaced.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from serving.policies.calm.program_demand import Calls, ProgramDemand
from serving.policies.calm.step_duration import UTILISATION, StepDuration
from serving.requests import Flags, Floats, Ints
from serving.view import StepView

AHEAD_S: Floats = np.round(np.geomspace(0.5, 1000.0, 40), 2)
"""The moments ahead at which demand is compared with capacity; an even number of them."""

SHORTEST_S = 1e-3
"""No demand is spread over less."""

LEAST_UTILISATION, MOST_UTILISATION = 0.7, 0.93
"""So much of the machine's time is given away however uneven demand is, and however even: what is
wrong with all forecasts alike does not even out."""

BLOCK = 128
"""So many programs are tried together; if none of them fits, none that is worth less is tried."""


class Admitted(NamedTuple):
    """Flags of the programs that can be in time together, (m,), and the share of time left over."""

    programs: Flags
    spare: float


class Demands(NamedTuple):
    """What each program wants of the machine, and by when, (m,) each.

    Tokens come one after the other: who leaves all its work to the end will be late. So a program
    wants nothing while it could still pause, and from then on its share of every second until its
    end. A stream wants its prompt by its next token, then a token every TBT.

    Attributes:
        due_s: how far ahead the first of it is due, at least 0.
        first_s, rest_s: seconds of the machine that are due then, and evenly from then on.
        lasts_s: how long from then on.
    """

    due_s: Floats
    first_s: Floats
    rest_s: Floats
    lasts_s: Floats

    def of(self, programs: Ints) -> Floats:
        """Seconds of the machine that each of these wants by each moment ahead: (k, moments)."""
        due_s, first_s, rest_s, lasts_s = (column[programs][:, None] for column in self)
        by: Floats = AHEAD_S - due_s
        is_due = by >= 0.0
        by /= lasts_s
        np.minimum(by, 1.0, out=by)
        by *= rest_s
        by += first_s
        by *= is_due
        return by


class Expected(NamedTuple):
    """The demand that is still to arrive, if arrivals go on as they were lately.

    Attributes:
        density: worth a second of need of what arrived, highest first, (k,).
        need_s: seconds of the machine that as many as each counts need, (k,), and `counts`: that.
        allowed_s: how long each may take, (k,), and `waits_s`: how much of it it could wait.
        by: (k + 1, moments) seconds of the machine that the first so many of them will want by
            each moment ahead.
    """

    density: Floats
    need_s: Floats
    counts: Floats
    allowed_s: Floats
    waits_s: Floats
    by: Floats

    def above(self, density: Floats) -> Floats:
        """What is worth more than each of these will want by each moment: (n, moments)."""
        return self.by[np.searchsorted(-self.density, -density, side="left")]


def expected(
    view: StepView, programs: ProgramDemand, value: Floats, pace: StepDuration
) -> Expected:
    """What to expect from the programs that arrived lately.

    Each wants all of it by the middle of the time in which it would want it, counted from its
    arrival: so it wants nothing of what is due earlier than that from now.

    Args:
        worth: of each program, (m,).
    """
    arrivals, need_s = view.arrivals, pace.of(programs.need_s(view.model))
    density = value / need_s
    order = np.flatnonzero(density > 0)
    order = order[np.argsort(-density[order], kind="stable")]
    isolated_latency_s, streamed_s = (
        programs.isolated_latency_s(pace.each_s),
        programs.tokens * arrivals.tbt_s,
    )
    ends_s = arrivals.final_s - arrivals.arrival_s
    allowed_s = np.where(programs.streams, arrivals.ttft_s + streamed_s, ends_s)
    waits_s = np.maximum(allowed_s - isolated_latency_s, 0.0)
    middle_s = allowed_s - 0.5 * np.where(
        programs.streams, streamed_s, np.minimum(isolated_latency_s, allowed_s)
    )
    by = np.empty((len(order) + 1, len(AHEAD_S)))
    by[0] = 0.0
    wanted = by[1:]
    np.subtract(AHEAD_S, middle_s[order][:, None], out=wanted)
    np.maximum(wanted, 0.0, out=wanted)
    wanted *= (need_s[order] / view.arrivals_s)[:, None]
    _sum_up(wanted)
    return Expected(
        density[order], need_s[order], programs.counts[order], allowed_s[order], waits_s[order], by
    )


def utilisation_of(expects: Expected, arrivals_s: float) -> float:
    """The share of the machine's time that may be given away: all but one standard deviation of
    what comes in the time that it can wait, within LEAST_UTILISATION and MOST_UTILISATION.

    Needs of programs that arrive independently add up to their sum, give or take the root of the
    sum of their squares; and in a part of the time to that part of it, give or take the part's
    root. What comes above the mean is in time all the same if it can wait so long. Otherwise it
    displaces others, at a loss only where these have begun: for as much of their time as they are
    at work. What has no room beside better work counts only as far as it has.

    Args:
        arrivals_s: the seconds in which they arrived.
    """
    if not expects.need_s.size:
        return UTILISATION
    before_s = np.cumsum(expects.need_s) - expects.need_s
    need_s = np.clip(arrivals_s - before_s, 0.0, expects.need_s)
    shares = need_s / need_s.sum()
    allowed_s, waits_s = float(shares @ expects.allowed_s), float(shares @ expects.waits_s)
    at_work = 1.0 - waits_s / max(allowed_s, SHORTEST_S)
    squares = float(shares @ (shares / expects.counts))
    deviation = math.sqrt(squares * arrivals_s / max(waits_s, SHORTEST_S))
    even = 1.0 - at_work * deviation
    return min(max(even, LEAST_UTILISATION), MOST_UTILISATION)


def admit(demands: Demands, density: Floats, expects: Expected, *, utilisation: float) -> Admitted:
    """Admit greedily, the highest value per second of the machine first.

    Args:
        density: worth a second of need of each program, (m,); who has none is not admitted.
        utilisation: the share of the machine's time that is given away.
    """
    order = np.flatnonzero(density > 0)
    order = order[np.argsort(-density[order], kind="stable")]
    capacity_s = utilisation * AHEAD_S
    taken = np.zeros(len(AHEAD_S))
    admitted = np.zeros(len(density), dtype=bool)
    for begin in range(0, len(order), BLOCK):
        block = order[begin : begin + BLOCK]
        wanted = demands.of(block)
        together = taken + wanted.sum(axis=0)
        if (together <= capacity_s - expects.above(density[block[-1:]])).all():
            admitted[block], taken = True, together  # the last has the least room
            continue
        fits, taken = _greedy(wanted, capacity_s - expects.above(density[block]), taken)
        admitted[block[fits]] = True
        if not fits.any():
            break
    left = (capacity_s - taken - expects.by[-1]) / AHEAD_S
    return Admitted(admitted, max(float(left.min()), 0.0))


def _greedy(wanted: Floats, room: Floats, taken: Floats) -> tuple[Flags, Floats]:
    """Who fits after those before it that fit, and what is taken then.

    Args:
        wanted, room: (k, moments) of each, best first.
        taken: (moments,) already.
    """
    room = np.where(wanted > 0, room, np.inf)  # who wants nothing by then needs no room
    fits = np.zeros(len(wanted), dtype=bool)
    left = np.arange(len(wanted))
    while len(left):
        # What is taken only grows, so that who does not fit now never will.
        able = np.flatnonzero((taken + wanted <= room).all(axis=1))
        left, wanted, room = left[able], wanted.take(able, axis=0), room.take(able, axis=0)
        together = wanted.copy()
        _sum_up(together)
        together += taken
        fit = (together <= room).all(axis=1)
        count = len(left) if fit.all() else int(np.argmin(fit))
        if count:
            fits[left[:count]] = True
            taken = together[count - 1]
        left, wanted, room = left[count + 1 :], wanted[count + 1 :], room[count + 1 :]
    return fits, taken


def _sum_up(wanted: Floats) -> None:
    """Turn what each wants by each moment into what all up to it want, (k, moments) in one piece.

    Two moments are taken as the parts of one complex number: half as many sums, each of which
    waits for the one before, come to the same.
    """
    pairs = wanted.view(np.complex128)
    np.cumsum(pairs, axis=0, out=pairs)


def demands_of(
    view: StepView,
    calls: Calls,
    programs: ProgramDemand,
    need_s: Floats,
    due_s: Floats,
    pace: StepDuration,
) -> Demands:
    """What the programs of the view want.

    Args:
        need_s: seconds of the machine that each needs, (m,).
        due_s: when each must run without a pause, and a stream have its next token, (m,).
    """
    requests, model, rows = view.requests, view.model, programs.first
    streams, tokens = programs.streams, calls.tokens[rows]
    prompt_s = calls.prompt_s[rows]
    token_s = np.maximum(model.token_s + model.context_s * calls.context[rows], 1e-12)
    # A stream's first token falls due with its prompt, the others after it.
    at_once = (prompt_s + token_s) / (prompt_s + np.maximum(tokens, 1.0) * token_s)
    first_s = need_s * np.where(streams, at_once, 0.0)
    ahead_s = due_s - view.now_s
    isolated_latency_s = programs.isolated_latency_s(pace.each_s) + np.minimum(
        ahead_s, 0.0
    )  # what is left of it
    lasts_s = np.where(streams, (tokens - 1.0) * requests.tbt_s[rows], isolated_latency_s)
    return Demands(
        np.maximum(ahead_s, 0.0), first_s, need_s - first_s, np.maximum(lasts_s, SHORTEST_S)
    )
