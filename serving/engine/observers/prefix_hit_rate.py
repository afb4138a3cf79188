"""The recent prefix-cache hit rate of later calls, which predicts how much they will prefill."""

from __future__ import annotations

import numpy as np

from serving.engine.observers.decayed_sums import DecayedSums, DecayedSumsState
from serving.requests import Floats, Ints

MEMORY_CALLS = 256
"""A call that many calls ago has the weight 1/e."""

PRIOR_CALLS = 8.0
"""Weight of a user's prior, in calls. The prior is the hit rate of all users."""

MAX_SHARED_RATE = 0.5
"""Limit on the hit rate of all users where it is the prior of a user."""


class PrefixHitRate:
    """The share of prompt tokens that the prefix cache held, by user number.

    Counts the calls after a program's first stage. Agents that repeat their context in each turn
    have a high hit rate there, as long as the cache keeps it.
    """

    def __init__(self) -> None:
        self._sums = DecayedSums(MEMORY_CALLS)  # calls, prompt tokens, cached tokens

    def begin(self, user: int) -> None:
        """Forget what this number stood for: it belongs to a new user from now on."""
        self._sums.begin(user)

    def ended(self, user: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a call of this user after its program's first stage."""
        self._sums.add(user, prompt_tokens, cached_tokens)

    def rates(self, users: Ints) -> Floats:
        """The hit rate to expect of each of these users' later calls, (n,), from 0 to 1."""
        _, prompt_tokens, cached_tokens = self._sums.of_all
        prior = min(cached_tokens / max(prompt_tokens, 1.0), MAX_SHARED_RATE)
        calls, prompt_tokens, cached_tokens = self._sums.of_users(users)
        own = cached_tokens / np.maximum(prompt_tokens, 1.0)
        rates: Floats = (calls * own + PRIOR_CALLS * prior) / (calls + PRIOR_CALLS)
        return rates

    def state(self, users: Ints) -> DecayedSumsState:
        """What was learned, of these users alone."""
        return self._sums.state(users)

    def restore(self, state: DecayedSumsState) -> None:
        """Begin with what was learned; the users of the state are numbered from 0."""
        self._sums.restore(state)
