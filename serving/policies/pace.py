"""How long a step may take: the pace at which what arrived lately would have been worth most.

Long steps use the machine best, since each pays its fixed cost for more tokens; short ones let
streams and long chains of calls be in time. Neither is right for all work: so each pace is tried on
the programs of the last minute, as if they came again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from serving.policies.programs import Programs, ends_s
from serving.requests import LATENCY, Floats
from serving.view import StepView

TBT_SHARE = 0.9
"""A step may take this share of the promised time between two tokens."""

NUM_PACES, SHORTEST = 16, 1.25
"""So many paces are tried, from this many times what a step costs anyway to that of a full step."""

LEAST_S, LEAST_SHARE, ROUNDING = 1e-6, 1e-3, 1e-9


class Pace(NamedTuple):
    """How long steps are.

    Attributes:
        step_s: seconds that a step may take; infinity where no promise asks for a limit.
        each_s: seconds that a step is taken to last: the limit, or else the least that it can.
        share: of the machine's time, what such steps leave beside their fixed cost.
    """

    step_s: float
    each_s: float
    share: float

    def of(self, seconds: Floats) -> Floats:
        """Seconds of the machine for what adds so many to its steps."""
        return seconds / self.share


def pace_of(view: StepView, step_s: float) -> Pace:
    """The pace of steps that take so long; none is longer than the engine's own budget allows."""
    base_s, longest_s = view.model.base_s, _longest_s(view)
    share = max(1.0 - base_s / min(step_s, longest_s), LEAST_SHARE)
    if step_s >= longest_s:
        return Pace(math.inf, base_s, share)
    return Pace(step_s, step_s, share)


def best_pace(
    view: StepView, arrived: Programs, worth: Floats, *, utilisation: float, margin: float
) -> Pace:
    """The pace at which the programs that arrived lately would have earned most.

    At each pace those that are in time alone are taken by worth per second of need, until the time
    in which they arrived is used up; the last one in part. Of equal paces the longest.

    Args:
        worth: of each program, (m,).
        utilisation: the share of the machine's time that is given away.
        margin: who has a deadline must be in time at steps this many times as long.
    """
    longest_s = _longest_s(view)
    shortest_s = SHORTEST * (view.model.base_s + view.model.token_s)
    paces = np.geomspace(np.clip(shortest_s, LEAST_S, longest_s), longest_s, NUM_PACES)
    values = _values(view, arrived, worth, paces, utilisation=utilisation, margin=margin)
    best = np.flatnonzero(values >= (1.0 - ROUNDING) * values.max())[-1]
    return pace_of(view, float(paces[best]))


def _values(
    view: StepView,
    arrived: Programs,
    worth: Floats,
    paces: Floats,
    *,
    utilisation: float,
    margin: float,
) -> Floats:
    """What would have been earned at each pace."""
    model, arrivals = view.model, view.arrivals
    need_s = arrived.need_s(model)
    order = np.argsort(-worth / need_s, kind="stable")
    allowed_s = ends_s(arrivals, arrived) - arrivals.arrival_s - arrived.fixed_s
    bearable_s = np.where(
        arrivals.kind == LATENCY,
        TBT_SHARE * arrivals.tbt_s,
        allowed_s / (margin * np.maximum(arrived.serial, 1.0)),
    )
    in_time = bearable_s[order] >= paces[:, None]
    wanted_s = in_time * need_s[order]
    before_s = np.cumsum(wanted_s, axis=1) - wanted_s
    room_s = utilisation * view.arrivals_s * (1.0 - model.base_s / paces)
    served = np.clip((room_s[:, None] - before_s) / need_s[order], 0.0, 1.0)
    values: Floats = (in_time * served) @ worth[order]
    return values


def _longest_s(view: StepView) -> float:
    """Seconds of a step that uses all of the engine's own token budget."""
    tokens = view.step_tokens
    step_s = view.model.seconds(new_tokens=tokens, num_decodes=0, decode_context_tokens=0)
    return max(step_s, LEAST_S)
