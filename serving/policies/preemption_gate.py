"""The preemption gate: a running batch is replaced only if the gain exceeds the loss.

The new batch must have more than MIN_GAIN higher goodput, and its gain until the next decision
must exceed the tokens that the engine cannot generate while it recomputes the lost KV cache.
Source: Wu (2025), section 4.2 (preemption to correct scheduling errors).
"""

from __future__ import annotations

import numpy as np

from serving.requests import Floats, Ints
from serving.view import StepView

MIN_GAIN = 0.1
"""Smallest relative gain in goodput for which a batch is replaced."""


def stall_s(view: StepView, indices: Ints, *, prefix_caching: bool = False) -> Floats:
    """Predicted seconds to recompute the KV cache of each of these requests after eviction: (k,).

    With prefix caching, the blocks of a preempted request can be found again until they are
    overwritten. vLLM overwrites the blocks that were freed first, so they survive if the blocks
    that are free now last until the request returns, which is not known. Assumption: the share
    found again equals the share of the cache that is free now. So nothing is found again in a full
    cache, where preemption matters.
    """
    held = view.requests.computed_tokens[indices].astype(np.float64)
    kept = view.free_kv_tokens / view.kv_tokens if prefix_caching else 0.0
    seconds: Floats = held * (1.0 - min(kept, 1.0)) * view.prefill_token_s
    return seconds


def exchange_batch(
    view: StepView,
    running: Ints,
    wanted: Ints,
    value: Floats,
    *,
    frame_s: float,
    prefix_caching: bool = False,
) -> Ints:
    """The wanted batch if the exchange pays as a whole; else the running batch.

    In the second case the best wanted requests fill the slots that running ones leave.

    Args:
        running: indices of the requests that hold a slot now, best first.
        wanted: indices of the batch that should run, best first; at least as many as `running`.
        value: goodput per second of each request of the view while it runs, (n,).
        frame_s: seconds until the next decision.
        prefix_caching: whether the engine finds blocks of preempted requests again.
    Returns:
        indices, as many as in `wanted`.
    """
    size = len(wanted)
    evicted = running[~np.isin(running, wanted)]
    if not len(evicted):
        return wanted
    stay = np.concatenate([running, wanted[~np.isin(wanted, running)]])[:size]
    value_now = float(value[stay].sum())
    gain = float(value[wanted].sum()) - value_now
    stall = float(stall_s(view, evicted, prefix_caching=prefix_caching).sum())
    loss = stall * _tokens_per_s(view, size)
    return wanted if gain > MIN_GAIN * value_now and gain * frame_s > loss else stay


def _tokens_per_s(view: StepView, size: int) -> float:
    """Tokens per second that a batch of this size generates."""
    return size / view.token_s
