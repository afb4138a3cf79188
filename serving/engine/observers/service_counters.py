"""Counters by program and by user: tokens served, calls missing, calls ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, islice, takewhile
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.requests import Floats, Ints

FORGET_AFTER_S = 600.0
"""Seconds without a request after which a program or user is forgotten."""

FAIR_MEMORY_S = 60.0
"""Age in seconds at which tokens served to a user have the weight 1/e.

Without this decay, a user that joins an engine which has served others for hours could flood it
until its own count has reached theirs.
"""

MAX_STAGE_CALLS = 1024
"""Limit on the number of calls that a stage may announce."""

MAX_STAGES = 1 << 53
"""Largest stage number that is kept apart from others."""

INITIAL_ROWS = 64
"""Length of a table at the start."""

_MAX_GROWTH = 200.0  # exp of it is far from overflow
_PRUNE_ABOVE = 4096  # names

N = TypeVar("N", np.float64, np.int64)


def grown_to(values: NDArray[N], number: int, *, fill: float = 0) -> NDArray[N]:
    """The values, extended by number + 1 rows of `fill` if they have no row `number` yet."""
    if number < len(values):
        return values
    more = np.full((number + 1, *values.shape[1:]), fill, dtype=values.dtype)
    return np.concatenate([values, more])


class ServedName(NamedTuple):
    """A name at one moment.

    Attributes:
        tokens: its counter.
        idle_s: seconds since its last request ended; 0 while it is open.
    """

    name: str
    tokens: float
    idle_s: float


class ServiceCounters:
    """The tokens served to each name; names have numbers, which index arrays.

    A number is reused once its name is forgotten. A name is open while it has a request in the
    engine.

    Args:
        lifted: raise the counter of a name that opens to the least counter of the open names, so
            that time without requests earns no priority. Source: Sheng et al. (2024), Fairness in
            serving large language models, section 4 (virtual token counter).
        memory_s: age at which tokens have the weight 1/e; infinity: they are never discounted.
    """

    def __init__(self, *, lifted: bool = False, memory_s: float = math.inf) -> None:
        self._lifted = lifted
        self._memory_s = memory_s
        self._origin_s = 0.0  # a token of this time was added as 1; later ones as more
        self._number: dict[str, int] = {}
        self._name: dict[int, str] = {}
        self._num_open: dict[int, int] = {}  # number -> its requests in the engine
        self._closed_s: dict[int, float] = {}  # number -> end of its last request; in time order
        self._free_numbers: list[int] = []
        self._tokens = np.zeros(INITIAL_ROWS)

    def knows(self, name: str, now_s: float) -> bool:
        """Whether the name is open, or was open less than FORGET_AFTER_S ago."""
        number = self._number.get(name)
        return number is not None and not self._is_forgotten(number, now_s)

    def is_open(self, name: str) -> bool:
        """Whether a request of this name is in the engine."""
        return self._number.get(name) in self._num_open

    def open(self, name: str, now_s: float) -> int:
        """Count a request of this name that arrives; returns the name's number."""
        number = self._number.get(name)
        if number is None:
            number = self._new(name, now_s)
        elif self._is_forgotten(number, now_s):
            self._tokens[number] = 0.0
        if self._lifted and number not in self._num_open and self._num_open:
            least = self._tokens[list(self._num_open)].min()
            self._tokens[number] = max(self._tokens[number], least)
        self._num_open[number] = self._num_open.get(number, 0) + 1
        self._closed_s.pop(number, None)
        return number

    def close(self, number: int, now_s: float) -> None:
        """Count a request of this number that ended."""
        self._num_open[number] -= 1
        if not self._num_open[number]:
            del self._num_open[number]
            self._closed_s[number] = now_s

    def add(self, numbers: Ints, tokens: Floats, now_s: float) -> None:
        """Add tokens to the counters of these numbers; a number may occur several times."""
        growth = self._growth(now_s)
        np.add.at(self._tokens, numbers, tokens * growth)

    def tokens(self, numbers: Ints, now_s: float) -> Floats:
        """The counters of these numbers, (n,): tokens, discounted by age."""
        growth = self._growth(now_s)
        return self._tokens[numbers] / growth

    def latest(self, now_s: float, most: int) -> Ints:
        """The numbers of at most so many names that are not forgotten, the latest ones last."""
        closed = takewhile(lambda n: not self._is_forgotten(n, now_s), reversed(self._closed_s))
        latest_first = islice(chain(reversed(self._num_open), closed), most)
        return np.array(list(latest_first)[::-1], dtype=np.int64)

    def state(self, numbers: Ints, now_s: float) -> list[ServedName]:
        """The names of these numbers now."""
        tokens = self.tokens(numbers, now_s).tolist()
        return [
            ServedName(self._name[number], count, now_s - self._closed_s.get(number, now_s))
            for number, count in zip(numbers.tolist(), tokens, strict=True)
        ]

    def restore(self, names: Sequence[ServedName], now_s: float, *, age_s: float) -> None:
        """Begin with these names, numbered from 0; the latest ones are last.

        Args:
            age_s: seconds since their state, in which they had no requests.
        """
        scale = self._growth(now_s) * math.exp(-age_s / self._memory_s)
        for each in names:
            number = self._new(each.name, now_s)
            self._tokens[number] = each.tokens * scale
            self._closed_s[number] = now_s - age_s - each.idle_s

    def _growth(self, now_s: float) -> float:
        """What a token of this time adds to the stored sums: exp((now - origin) / memory).

        The sums are scaled down, and the origin is moved, before they overflow. A clock that was
        set back counts as one that stands still.
        """
        growth = max(now_s - self._origin_s, 0.0) / self._memory_s
        if growth > _MAX_GROWTH:
            self._tokens *= math.exp(-growth)
            self._origin_s, growth = now_s, 0.0
        return math.exp(growth)

    def _new(self, name: str, now_s: float) -> int:
        if not self._free_numbers and len(self._number) >= _PRUNE_ABOVE:
            self._prune(now_s)
        number = self._free_numbers.pop() if self._free_numbers else len(self._number)
        self._tokens = grown_to(self._tokens, number)
        self._tokens[number] = 0.0
        self._number[name] = number
        self._name[number] = name
        return number

    def _is_forgotten(self, number: int, now_s: float) -> bool:
        return now_s - self._closed_s.get(number, math.inf) >= FORGET_AFTER_S

    def _prune(self, now_s: float) -> None:
        """Free the numbers of forgotten names.

        `_closed_s` is in time order, so the search stops at the first name that is not forgotten:
        it is cheap, although it happens at each new name.
        """
        for number in list(takewhile(lambda n: self._is_forgotten(n, now_s), self._closed_s)):
            del self._closed_s[number]
            del self._number[self._name.pop(number)]
            self._free_numbers.append(number)


class ProgramCalls:
    """For each program: calls of its stage that have not arrived, and tokens of its ended calls.

    The calls of a stage are made at once but reach the engine one after another. A policy that saw
    only the first of them would underestimate the program.
    """

    def __init__(self) -> None:
        self._stage = np.full(INITIAL_ROWS, -1)
        self._missing = np.zeros(INITIAL_ROWS, dtype=np.int64)
        self._ended_tokens = np.zeros(INITIAL_ROWS)

    def arrived(
        self, number: int, stage: int, stage_calls: int, *, is_new: bool, is_alone: bool
    ) -> None:
        """Count a call that arrives.

        Args:
            number: its program's number.
            stage_calls: calls that its stage will have.
            is_new: whether it is the first call of its program.
            is_alone: whether no other call of its program is in the engine. If another one is, a
                call of an earlier stage is late and changes nothing. If none is, a call of a stage
                that is complete or past starts that stage anew, as a retry does.
        """
        self._stage = grown_to(self._stage, number, fill=-1)
        self._missing = grown_to(self._missing, number)
        self._ended_tokens = grown_to(self._ended_tokens, number)
        stage, present = min(stage, MAX_STAGES), self._stage[number]
        if is_new:
            self._ended_tokens[number] = 0.0
        is_complete = stage < present or self._missing[number] == 0
        if is_new or stage > present or (is_alone and is_complete):
            self._stage[number] = stage
            self._missing[number] = min(stage_calls, MAX_STAGE_CALLS)
        if stage == self._stage[number]:
            self._missing[number] = max(self._missing[number] - 1, 0)

    def ended(self, number: int, tokens: int) -> None:
        """Count a call of this program that ended, with its input and output tokens."""
        self._ended_tokens[number] += tokens

    def missing(self, numbers: Ints) -> Ints:
        """Calls of each program's present stage that have not arrived, (n,)."""
        missing: Ints = self._missing[numbers]
        return missing

    def ended_tokens(self, numbers: Ints) -> Floats:
        """Input and output tokens of each program's ended calls, (n,)."""
        tokens: Floats = self._ended_tokens[numbers]
        return tokens
