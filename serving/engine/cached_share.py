"""How much of later calls' prompts the prefix cache held, so that their need can be foretold."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from serving.requests import Floats, Ints

MEMORY_CALLS = 256
"""What was found this many calls ago counts 1/e of what is found now."""

PRIOR_TOKENS = 4096.0
"""Of a user, so many prompt tokens are taken to have been found as those of all users are."""

_KEPT = 1.0 - 1.0 / MEMORY_CALLS


class CachedShare:
    """The share of prompt tokens that was found, for each user, by the user's number.

    Of calls after their program's first stage: agents that repeat their context with every turn
    read little of it twice, where the cache still has it.
    """

    def __init__(self) -> None:
        self._found = self._asked = 0.0
        self._own: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def begin(self, user: int) -> None:
        """This number is a new user's."""
        self._own.pop(user, None)

    def ended(self, user: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A later call of this user has ended, of whose prompt so much was found."""
        self._found = self._found * _KEPT + cached_tokens
        self._asked = self._asked * _KEPT + prompt_tokens
        found, asked = self._own[user]
        self._own[user] = (found * _KEPT + cached_tokens, asked * _KEPT + prompt_tokens)

    def shares(self, users: Ints) -> Floats:
        """What is expected to be found of each of these users' later prompts: (n,), 0 to 1."""
        of_all = self._found / max(self._asked, 1.0)
        present, which = np.unique(users, return_inverse=True)
        own = np.array([self._own.get(user, (0.0, 0.0)) for user in present.tolist()])
        found, asked = own.reshape(-1, 2).T
        shares: Floats = ((found + PRIOR_TOKENS * of_all) / (asked + PRIOR_TOKENS))[which]
        return shares
