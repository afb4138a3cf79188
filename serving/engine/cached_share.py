"""How much of later calls' prompts the prefix cache held, so that their need can be foretold."""

from __future__ import annotations

import numpy as np

from serving.engine.accounts import ROOM, with_room
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
        self._found_of_all = self._asked_of_all = 0.0
        self._found, self._asked = np.zeros(ROOM), np.zeros(ROOM)

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._found = with_room(self._found, user)
        self._asked = with_room(self._asked, user)
        self._found[user] = self._asked[user] = 0.0

    def ended(self, user: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A later call of this user has ended, of whose prompt so much was found."""
        self._found_of_all = self._found_of_all * _KEPT + cached_tokens
        self._asked_of_all = self._asked_of_all * _KEPT + prompt_tokens
        self._found[user] = self._found[user] * _KEPT + cached_tokens
        self._asked[user] = self._asked[user] * _KEPT + prompt_tokens

    def shares(self, users: Ints) -> Floats:
        """What is expected to be found of each of these users' later prompts: (n,), 0 to 1."""
        found = PRIOR_TOKENS * self._found_of_all / max(self._asked_of_all, 1.0)
        shares: Floats = (self._found[users] + found) / (self._asked[users] + PRIOR_TOKENS)
        return shares
