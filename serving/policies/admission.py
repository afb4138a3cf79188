"""Who can be in time together: programs admitted by value per second of the machine.

A program is admitted if, at every moment ahead, what is due by then fits into what the machine can
do: for itself, for those admitted before it, and for what is still to arrive and will be worth
more. The last part is a price: at twice the load only the better half is begun, and what is begun
is finished.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.programs import Calls, Programs
from serving.requests import LATENCY, Flags, Floats, Ints
from serving.view import StepView

AHEAD_S: Floats = np.round(np.geomspace(0.5, 1000.0, 40), 2)
"""The moments ahead at which demand is compared with capacity."""

BLOCK = 128
"""So many programs are tried together; if none of them fits, none that is worth less is tried."""


class Admitted(NamedTuple):
    """Flags of the programs that can be in time together, (m,), and the share of time left over."""

    programs: Flags
    spare: float


class Demands(NamedTuple):
    """What each program wants of the machine, and by when, (m,) each.

    All of it by its deadline; a stream its prompt by its next token, then a token every TBT.

    Attributes:
        need_s: seconds of the machine.
        due_s: how far ahead its deadline is; of a stream, its next token.
        streams: which are streams; the others leave out what follows.
        tokens, tbt_s: output to come, and the time between two of its tokens.
        prompt_s, token_s: seconds of its prompt, and of each token.
    """

    need_s: Floats
    due_s: Floats
    streams: Flags
    tokens: Floats
    tbt_s: Floats
    prompt_s: Floats
    token_s: Floats

    def of(self, programs: Ints) -> Floats:
        """Seconds of the machine that each of these wants by each moment ahead: (k, moments)."""
        is_due = self.due_s[programs, None] <= AHEAD_S
        by = self.need_s[programs, None] * is_due
        places = np.flatnonzero(self.streams[programs])
        if len(places):
            by[places] = self._of_streams(programs[places], is_due[places])
        return by

    def _of_streams(self, rows: Ints, is_due: Flags) -> Floats:
        columns = [column[rows, None] for column in self]
        need_s, due_s, _, tokens, tbt_s, prompt_s, token_s = columns
        with np.errstate(invalid="ignore"):
            due = np.where(is_due, (AHEAD_S - due_s) / tbt_s + 1.0, 0.0)
        whole_s = prompt_s + tokens * token_s
        by: Floats = (prompt_s * is_due + np.minimum(due, tokens) * token_s) / whole_s * need_s
        return by


class Expected(NamedTuple):
    """The demand that is still to arrive, if arrivals go on as they were lately.

    Attributes:
        density: worth a second of need of what arrived, highest first, (k,).
        by: (k + 1, moments) seconds of the machine that the first so many of them will want by
            each moment ahead.
    """

    density: Floats
    by: Floats

    def above(self, density: Floats) -> Floats:
        """What is worth more than each of these will want by each moment: (n, moments)."""
        return self.by[np.searchsorted(-self.density, -density, side="left")]


def expected(view: StepView, programs: Programs, need_s: Floats, worth: Floats) -> Expected:
    """What to expect from the programs that arrived lately.

    One that has L seconds from its arrival to its deadline wants nothing of what is due earlier
    than L from now; a stream wants its tokens as they fall due, half of them by its middle.
    """
    arrivals = view.arrivals
    density = worth / need_s
    order = np.argsort(-density, kind="stable")
    order = order[density[order] > 0]
    middle_s = arrivals.ttft_s + 0.5 * programs.tokens * arrivals.tbt_s
    lasts_s = np.where(arrivals.kind == LATENCY, middle_s, arrivals.final_s - arrivals.arrival_s)
    wanted = np.maximum(AHEAD_S - lasts_s[order, None], 0.0)
    wanted *= need_s[order, None] / view.arrivals_s
    by = np.zeros((len(order) + 1, len(AHEAD_S)))
    np.cumsum(wanted, axis=0, out=by[1:])
    return Expected(density[order], by)


def admit(demands: Demands, density: Floats, expects: Expected, *, utilisation: float) -> Admitted:
    """Admit greedily, the highest value per second of the machine first.

    Args:
        density: worth a second of need of each program, (m,); who has none is not admitted.
        utilisation: the share of the machine's time that is given away.
    """
    order = np.argsort(-density, kind="stable")
    order = order[density[order] > 0]
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
        left = left[(taken + wanted[left] <= room[left]).all(axis=1)]
        together = taken + np.cumsum(wanted[left], axis=0)
        fit = (together <= room[left]).all(axis=1)
        count = len(left) if fit.all() else int(np.argmin(fit))
        if count:
            fits[left[:count]] = True
            taken = together[count - 1]
        left = left[count + 1 :]
    return fits, taken


def demands_of(
    view: StepView,
    calls: Calls,
    programs: Programs,
    need_s: Floats,
    ends_s: Floats,
    next_token_s: Floats,
) -> Demands:
    """What the programs of the view want.

    Args:
        need_s, ends_s: of each program, (m,).
        next_token_s: when each request's next token is due, (n,).
    """
    requests, model, rows = view.requests, view.model, programs.first
    streams = requests.kind[rows] == LATENCY
    due_s = np.where(streams, np.maximum(next_token_s[rows] - view.now_s, 0.0), ends_s - view.now_s)
    prompt_s: Floats = calls.unread[rows] * np.float64(model.token_s)
    return Demands(
        need_s=need_s,
        due_s=due_s,
        streams=streams,
        tokens=calls.tokens[rows],
        tbt_s=requests.tbt_s[rows],
        prompt_s=prompt_s,
        token_s=np.maximum(model.token_s + model.context_s * calls.context[rows], 1e-12),
    )
