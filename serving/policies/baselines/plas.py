"""Program-level attained service: whose program has received least comes first.

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
) -> Plan:
    """Multilevel queues by the service that a program has attained, oldest call first in each.

    Knows nothing of lengths and promises: who has had little may soon be done. A call enters the
    level of its program's earlier calls and sinks while it is served itself.

    Departures. Service is estimated from the tokens that were computed. The earlier calls of a
    program with parallel ones add up, as for the paper's programs of one thread; its rule for many
    threads follows their critical path. Waiting counts since the call was last computed, so that
    a promotion ends once it has been served. Expired work comes last.

    Args:
        quantum_s: width of the first level, in seconds of service; each level is twice as wide as
            the one before.
        levels: K, how many there are; the last has no end.
        starvation_ratio: beta: a call that has waited so many times as long as its program was
            served moves up to the first level.
    """
    service_s = attained_s(view)
    waited_s = view.now_s - view.requests.unscheduled_s
    level = queue_level(service_s, quantum_s, levels)
    level[waited_s >= starvation_ratio * service_s] = 0
    return order_by(view, deadline_class(view), level, batch=batch, fairness=fairness)


def attained_s(view: StepView) -> Floats:
    """Seconds that each call and the earlier ones of its program were served: (n,).

    The call's own prompt and output tokens at the engine's speed for each; what its program's
    ended calls computed at the mean of all calls that are in the engine.
    """
    requests = view.requests
    read = np.where(requests.output_tokens > 0, requests.prompt_tokens, requests.computed_tokens)
    own_s = read * view.prefill_token_s + requests.output_tokens * view.token_s
    own = (read + requests.output_tokens).astype(np.float64)
    _, program = np.unique(requests.program, return_inverse=True)
    present = np.bincount(program, weights=own)[program]
    earlier = np.maximum(requests.program_tokens - present, 0.0)
    # Sorted, for a sum that does not depend on the order of the requests.
    mean_s = np.sort(own_s).sum() / own.sum() if own.any() else view.token_s
    return own_s + earlier * mean_s


def queue_level(service_s: Floats, quantum_s: float, levels: int) -> Ints:
    """The queue of each, 0 for the least served: (n,). Level i begins at (2^i - 1) quanta."""
    level: Ints = np.floor(np.log2(service_s / quantum_s + 1.0)).astype(np.int64)
    return np.minimum(level, levels - 1)
