"""The preemption gate: who may take a running request's place, and when it is not worth it.

A place is given up only for goodput that is higher by more than MIN_GAIN, and only if what is won
until the next decision exceeds what the engine earns nothing in: computing the lost cache again.

Source: Wu (2025), section 4.2 (preemption to correct scheduling errors).
"""

from __future__ import annotations

import numpy as np

from serving.requests import Floats, Ints
from serving.view import StepView

MIN_GAIN = 0.1
"""Who gives way is exchanged only for what is worth more than this share more."""


def stall_s(view: StepView, places: Ints, *, prefix_caching: bool = False) -> Floats:
    """Predicted seconds of computing again what each would lose by giving up its cache: (n,).

    With prefix caching, what a preempted request held stays to be found until it is overwritten.
    vLLM overwrites what was freed first, so it survives as long as the room that is free now
    outlasts its absence, which nobody knows. Assumed: the share of the cache that is free now is
    the share that is found again. So in a full cache, where preemption matters, nothing is.
    """
    held = view.requests.computed_tokens[places].astype(np.float64)
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
    """The wanted batch if it pays as a whole; else the running stay, and it fills what they leave.

    Args:
        running: places of those that hold a place now, best first.
        wanted: places of the batch that should run, best first; at least as many as run.
        worth: goodput a second of each request of the view while it runs, (n,).
        frame_s: seconds for which the exchange lasts.
        prefix_caching: whether the engine finds again what a preempted request has left.
    Returns:
        as many places as are wanted.
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
    """What a batch of this size generates: what is lost in a second of stall."""
    return size / view.token_s
