"""What is known of each program and each user, by number, for as long as they may come back."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.requests import Floats, Ints

FORGET_AFTER_S = 600.0
"""A program or user without a request for this long is new when it comes again."""

FAIR_MEMORY_S = 60.0
"""What a user was served this long ago counts 1/e of what it is served now. Without this, whoever
came to an engine that has served others for hours could flood it until it had caught up."""

MOST_CALLS = 1024
"""A stage that is said to have more calls is taken to have this many."""

MOST_STAGES = 1 << 53
"""Stages are told apart up to here."""

ROOM = 64
"""Places of a table to begin with."""

_MOST_GROWTH = 200.0  # exp of it is far from overflow
_PRUNE_ABOVE = 4096

N = TypeVar("N", np.float64, np.int64)


def grown_to(values: NDArray[N], number: int, *, fill: float = 0) -> NDArray[N]:
    """The values with a place for this number, and for as many again; new ones hold `fill`."""
    if number < len(values):
        return values
    more = np.full((number + 1, *values.shape[1:]), fill, dtype=values.dtype)
    return np.concatenate([values, more])


class ServiceCounters:
    """A running sum a name; numbers are given again once their name is forgotten.

    A name that is new, or comes back after a pause, begins no lower than the least of those that
    are present: absence saves up no claim. Source of the lift: Sheng et al. (2024), Fairness in
    serving large language models, section 4 (virtual token counter).
    """

    def __init__(self, *, lifted: bool = False, memory_s: float = math.inf) -> None:
        self._lifted = lifted
        self._memory_s = memory_s
        self._origin_s = 0.0  # when a token was entered as one; later ones as more
        self._number: dict[str, int] = {}
        self._name: dict[int, str] = {}
        self._open: dict[int, int] = {}
        self._closed_s: dict[int, float] = {}
        self._spare: list[int] = []
        self._tokens = np.zeros(ROOM)

    def knows(self, name: str, now_s: float) -> bool:
        """Whether the name is here, or was so lately that it is not forgotten."""
        number = self._number.get(name)
        return number is not None and not self._is_forgotten(number, now_s)

    def is_open(self, name: str) -> bool:
        """Whether a request of this name is here now."""
        return self._number.get(name) in self._open

    def open(self, name: str, now_s: float) -> int:
        """A request of this name begins: the name's number."""
        number = self._number.get(name)
        if number is None:
            number = self._new(name, now_s)
        elif self._is_forgotten(number, now_s):
            self._tokens[number] = 0.0
        if self._lifted and number not in self._open and self._open:
            least = self._tokens[list(self._open)].min()
            self._tokens[number] = max(self._tokens[number], least)
        self._open[number] = self._open.get(number, 0) + 1
        self._closed_s.pop(number, None)
        return number

    def close(self, number: int, now_s: float) -> None:
        """A request of this number ended."""
        self._open[number] -= 1
        if not self._open[number]:
            del self._open[number]
            self._closed_s[number] = now_s

    def add(self, numbers: Ints, tokens: Floats, now_s: float) -> None:
        """So many tokens were computed for each; a number may come several times."""
        growth = self._growth(now_s)
        np.add.at(self._tokens, numbers, tokens * growth)

    def tokens(self, numbers: Ints, now_s: float) -> Floats:
        """Tokens computed so far for each; older ones count less where memory ends."""
        growth = self._growth(now_s)
        return self._tokens[numbers] / growth

    def _growth(self, now_s: float) -> float:
        """What a token of now counts in the sums, which are scaled down before they overflow.

        A clock that was set back counts as one that stands still.
        """
        growth = max(now_s - self._origin_s, 0.0) / self._memory_s
        if growth > _MOST_GROWTH:
            self._tokens *= math.exp(-growth)
            self._origin_s, growth = now_s, 0.0
        return math.exp(growth)

    def _new(self, name: str, now_s: float) -> int:
        if not self._spare and len(self._number) >= _PRUNE_ABOVE:
            self._prune(now_s)
        number = self._spare.pop() if self._spare else len(self._number)
        self._tokens = grown_to(self._tokens, number)
        self._tokens[number] = 0.0
        self._number[name] = number
        self._name[number] = name
        return number

    def _is_forgotten(self, number: int, now_s: float) -> bool:
        return now_s - self._closed_s.get(number, math.inf) >= FORGET_AFTER_S

    def _prune(self, now_s: float) -> None:
        """Names close in time order, so that the first that is young ends the search: it looks at
        few, however many there are, as it happens with every new name."""
        for number in list(takewhile(lambda n: self._is_forgotten(n, now_s), self._closed_s)):
            del self._closed_s[number]
            del self._number[self._name.pop(number)]
            self._spare.append(number)


class ProgramCalls:
    """What of each program's calls is still to arrive and what has ended, by the program's number.

    A stage's calls are made at once and reach the engine one after another. Who saw the first of
    them alone would take the program for a smaller one than it is.
    """

    def __init__(self) -> None:
        self._stage = np.full(ROOM, -1)
        self._missing = np.zeros(ROOM, dtype=np.int64)
        self._ended_tokens = np.zeros(ROOM)

    def arrived(
        self, number: int, stage: int, stage_calls: int, *, is_new: bool, is_alone: bool
    ) -> None:
        """A call of a stage that is known to have so many of them arrived.

        Args:
            is_new: whether it is the first of its program.
            is_alone: whether no other call of its program is in the engine. If one is, a call of
                an earlier stage comes late, and says nothing of the present one. If none is, a
                stage that has had all of its calls is asked again, as by a retry.
        """
        self._stage = grown_to(self._stage, number, fill=-1)
        self._missing = grown_to(self._missing, number)
        self._ended_tokens = grown_to(self._ended_tokens, number)
        stage, present = min(stage, MOST_STAGES), self._stage[number]
        if is_new:
            self._ended_tokens[number] = 0.0
        had_all = stage < present or self._missing[number] == 0
        if is_new or stage > present or (is_alone and had_all):
            self._stage[number] = stage
            self._missing[number] = min(stage_calls, MOST_CALLS)
        if stage == self._stage[number]:
            self._missing[number] = max(self._missing[number] - 1, 0)

    def ended(self, number: int, tokens: int) -> None:
        """A call of this program has come to its end, with so many tokens read and written."""
        self._ended_tokens[number] += tokens

    def missing(self, numbers: Ints) -> Ints:
        """Calls of each one's present stage that are still to arrive."""
        still_to_come: Ints = self._missing[numbers]
        return still_to_come

    def ended_tokens(self, numbers: Ints) -> Floats:
        """Tokens that each one's calls read and wrote which came to their end."""
        tokens: Floats = self._ended_tokens[numbers]
        return tokens
