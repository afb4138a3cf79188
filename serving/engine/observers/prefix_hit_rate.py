"""How much of later calls' prompts the prefix cache held, so that their need can be foretold."""

from __future__ import annotations

import numpy as np

from serving.engine.observers.decayed_sums import DecayedSums
from serving.requests import Floats, Ints

MEMORY_CALLS = 256
"""What was found this many calls ago counts 1/e of what is found now."""

PRIOR_CALLS = 8.0
"""Of a user, so many calls are taken to have found as much as those of all users did."""

MOST_OF_OTHERS = 0.5
"""Nobody is taken to find more than this share for what others found."""


class PrefixHitRate:
    """The share of prompt tokens that was found, for each user, by the user's number.

    Of calls after their program's first stage: agents that repeat their context with every turn
    read little of it twice, where the cache still has it.
    """

    def __init__(self) -> None:
        self._sums = DecayedSums(MEMORY_CALLS)  # calls, their prompt tokens, what of them was found

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._sums.begin(user)

    def ended(self, user: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A later call of this user has ended, of whose prompt so much was found."""
        self._sums.add(user, prompt_tokens, cached_tokens)

    def shares(self, users: Ints) -> Floats:
        """What is expected to be found of each of these users' later prompts: (n,), 0 to 1."""
        _, asked, found = self._sums.of_all
        others = min(found / max(asked, 1.0), MOST_OF_OTHERS)
        calls, asked, found = self._sums.own(users)
        own = found / np.maximum(asked, 1.0)
        shares: Floats = (calls * own + PRIOR_CALLS * others) / (calls + PRIOR_CALLS)
        return shares
