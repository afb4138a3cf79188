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
    worth: Floats,
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
    now_worth = float(worth[stay].sum())
    gain = float(worth[wanted].sum()) - now_worth
    stall = float(stall_s(view, evicted, prefix_caching=prefix_caching).sum())
    loss = stall * _tokens_per_s(view, size)
    return wanted if gain > MIN_GAIN * now_worth and gain * frame_s > loss else stay


def exchange_each(
    view: StepView,
    running: Ints,
    wanted: Ints,
    worth: Floats,
    *,
    frame_s: float,
    prefix_caching: bool = False,
) -> Ints:
    """Each place by itself: the best newcomer takes it from the running request that costs least.

    Newcomers take empty places first. Then the best of them meets the running request that asks
    the least for giving way, the second best the next, for as long as the newcomer is worth more
    than MIN_GAIN more, and by more than the stall of recomputing the other costs in a frame.
    No other pairing makes more exchanges. Arguments as in exchange_batch.

    Returns:
        as many places as are wanted, those that were wanted and run first.
    """
    size = len(wanted)
    kept = running[np.isin(running, wanted)]
    newcomers = wanted[~np.isin(wanted, running)]
    newcomers = newcomers[np.argsort(-worth[newcomers], kind="stable")]
    others = running[~np.isin(running, wanted)]
    loss = stall_s(view, others, prefix_caching=prefix_caching) * _tokens_per_s(view, size)
    price = np.maximum((1.0 + MIN_GAIN) * worth[others], worth[others] + loss / frame_s)
    cheapest = np.argsort(price[::-1], kind="stable")
    others, price = others[::-1][cheapest], price[::-1][cheapest]  # among equals, the last ranked
    num_free = max(size - len(running), 0)
    others, price = others[max(len(running) - size, 0) :], price[max(len(running) - size, 0) :]
    challengers = newcomers[num_free : num_free + len(others)]
    pays = worth[challengers] > price[: len(challengers)]
    num_pays = int(np.argmin(np.append(pays, False)))
    return np.concatenate([kept, newcomers[: num_free + num_pays], others[num_pays:]])[:size]


def _tokens_per_s(view: StepView, size: int) -> float:
    """What a batch of this size generates: what is lost in a second of stall."""
    return size / view.token_s
