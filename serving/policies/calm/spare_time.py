"""Which requests that are not admitted run in the time that the admitted ones leave.

Admission reserves time for better work that is still to come, as far ahead as it plans. Within the
next second little of that has arrived, so the machine would often idle: other requests use it then,
as long as no admitted program has to run more slowly than it can bear.
"""

from __future__ import annotations

import numpy as np

from serving.policies.calm.admission import ExpectedDemand
from serving.policies.calm.program_demand import MIN_S, Calls, ProgramDemand, seconds_added
from serving.policies.calm.step_duration import BEARABLE_SHARE, StepDuration, step_duration_of
from serving.requests import BEST_EFFORT, Flags, Floats, Ints
from serving.view import StepView


def in_spare_time(
    view: StepView,
    calls: Calls,
    programs: ProgramDemand,
    order: Ints,
    *,
    admitted: Flags,
    density: Floats,
    expected: ExpectedDemand,
    utilisation: float,
    step: StepDuration,
) -> Flags:
    """Flags of the requests that are not admitted and run all the same: (n,).

    All of them if nothing is admitted.

    Args:
        order: indices of the requests that may run, best first.
        admitted: (n,).
        density: value / demand of each program, (m,).
        utilisation: share of machine time that is allocated.
    """
    others = order[~admitted[order]]
    fits = np.zeros(len(view.requests), dtype=bool)
    if len(others) == len(order):
        fits[others] = True
        return fits
    longest_s = min(step.frame_s, step_duration_of(view, np.inf).step_s)
    step_s = max(min(longest_s, _bearable_step_s(view, programs, admitted)), MIN_S)
    useful_share = max(1.0 - view.model.base_s / step_s, 0.0)
    busy = float(seconds_added(view, calls, order[admitted[order]], 1.0 / step_s).sum())
    room = utilisation * useful_share - busy
    soon = expected.soon_above(density)[programs.row_of[others]]
    spare = room - np.where(view.requests.kind[others] == BEST_EFFORT, 0.0, soon)
    wanted = seconds_added(view, calls, others, 1.0 / step_s)
    fits[others[np.cumsum(wanted) - wanted < spare]] = True
    return fits


def _bearable_step_s(view: StepView, programs: ProgramDemand, admitted: Flags) -> float:
    """The longest steps with which every admitted program is in time; infinity without any."""
    kept = np.zeros(len(programs.first), dtype=bool)
    kept[programs.row_of[admitted]] = True
    left_s = programs.ends_s - view.now_s - programs.fixed_s
    bearable_s = np.where(
        programs.is_stream,
        BEARABLE_SHARE * view.requests.tbt_s[programs.first],
        BEARABLE_SHARE * left_s / np.maximum(programs.serial_tokens, 1.0),
    )
    return float(bearable_s[kept].min(initial=np.inf))
