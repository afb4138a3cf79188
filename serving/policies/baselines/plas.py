"""Program-level attained service: programs that have received least service come first.

Source: Luo et al. (2025), Autellix: An efficient serving engine for LLM agents as general
programs, section 4.2 and algorithm 1; Wu (2025), section 6.1 (the same as a baseline).
"""

from __future__ import annotations

import numpy as np

from serving.policies.ranking import order_by
from serving.policies.urgency import deadline_class
from serving.requests import Floats, Ints
from serving.view import Plan, StepView


def plas(
    view: StepView,
    *,
    batch: int = 0,
    fairness: float = 0.0,
    quantum_s: float = 2.0,
    levels: int = 8,
    starvation_ratio: float = 50.0,
    late_last: bool = True,
) -> Plan:
    """Multilevel queues by a program's attained service, oldest call first in each level.

    It uses neither predicted lengths nor SLOs: a program that has received little service may end
    soon. A call enters at the level of its program's earlier calls, and moves down while it is
    served itself.

    Departures. Service is estimated from computed tokens. The service of parallel calls is added
    up, as for the paper's single-threaded programs; the paper's rule for multi-threaded ones
    follows the critical path. Waiting time counts from the call's last computation, so a promotion
    ends once the call has been served. Expired work comes last.

    Args:
        quantum_s: width of the first level, in seconds of service; each level is twice as wide as
            the one before.
        levels: K, the number of levels; the last one is unbounded.
        starvation_ratio: beta: a call that has waited at least this many times its program's
            service moves up to the first level.
        late_last: False: expired work keeps its place, as in the papers, which know no deadlines.
    """
    service_s = attained_s(view)
    waited_s = view.now_s - view.requests.unscheduled_s
    level = queue_level(service_s, quantum_s, levels)
    level[waited_s >= starvation_ratio * service_s] = 0
    classes = deadline_class(view) if late_last else None
    return order_by(view, classes, level, batch=batch, fairness=fairness)


def attained_s(view: StepView) -> Floats:
    """Seconds of service of each call and the ended calls of its program: (n,).

    The call's own tokens count at the engine's prefill and decode speeds. Tokens of ended calls
    count at the mean time per token over all calls in the engine.
    """
    requests = view.requests
    prefilled = np.where(
        requests.output_tokens > 0, requests.prompt_tokens, requests.computed_tokens
    )
    own_s = prefilled * view.prefill_token_s + requests.output_tokens * view.token_s
    own_tokens = (prefilled + requests.output_tokens).astype(np.float64)
    _, program = np.unique(requests.program, return_inverse=True)
    present_tokens = np.bincount(program, weights=own_tokens)[program]
    ended_tokens = np.maximum(requests.program_tokens - present_tokens, 0.0)
    # Sorted, so that rounding does not depend on the order of the requests.
    mean_s = np.sort(own_s).sum() / own_tokens.sum() if own_tokens.any() else view.token_s
    return own_s + ended_tokens * mean_s


def queue_level(service_s: Floats, quantum_s: float, levels: int) -> Ints:
    """The queue level of each call, 0 for the least served: (n,).

    Level i begins at (2^i - 1) quanta.
    """
    level: Ints = np.floor(np.log2(service_s / quantum_s + 1.0)).astype(np.int64)
    return np.minimum(level, levels - 1)
