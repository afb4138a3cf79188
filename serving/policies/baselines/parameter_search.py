"""A policy's parameter, found while it serves: values are tried in turn, the best is kept longest.

Source: Wu (2025), section 4.2 (the cutoff p explores thresholds and converges to those with the
most goodput); Garivier and Moulines (2011), On upper-confidence bound policies for switching
bandit problems (older observations count less, so that a load that changes is followed).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

MEMORY_EPOCHS = 100.0
"""An observation this many epochs old counts 1/e of a new one."""

FIRST_TRIES = 2
"""How often each value is tried before any two are compared: their scatter is not known earlier."""

_DECAY = math.exp(-1.0 / MEMORY_EPOCHS)


class TunedParameter(NamedTuple):
    """A keyword of a policy that is found online, and the values that it may take."""

    parameter: str
    values: tuple[float, ...]


TUNED_PARAMETERS: Mapping[str, TunedParameter] = {
    "calm_published": TunedParameter("cutoff", (0.95, 0.8, 0.9, 1.0)),
}
"""By policy; the first value is where a search begins."""


class ParameterSearch(NamedTuple):
    """What is known of each value so far: a discounted upper-confidence bound search.

    No randomness: the same observations lead to the same choices.

    Attributes:
        values: the candidates, at least one.
        choice: the candidate to use in this epoch.
        tries: observations of each, so many in all.
        counts, sums, squares: of the observed goodputs of each, older ones discounted.
    """

    values: tuple[float, ...]
    choice: int
    tries: tuple[int, ...]
    counts: tuple[float, ...]
    sums: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: tuple[float, ...]) -> ParameterSearch:
        """Nothing is known yet; the first value is used."""
        assert values, "a search needs a candidate"
        nothing = (0.0,) * len(values)
        return cls(values, 0, (0,) * len(values), nothing, nothing, nothing)

    @property
    def value(self) -> float:
        """What the parameter is in this epoch."""
        return self.values[self.choice]

    def observe(self, goodput: float) -> ParameterSearch:
        """An epoch with the present choice ended with this goodput; the next one's choice."""
        after = self._replace(
            tries=tuple(
                num_tries + (place == self.choice) for place, num_tries in enumerate(self.tries)
            ),
            counts=_with(self.counts, self.choice, 1.0),
            sums=_with(self.sums, self.choice, goodput),
            squares=_with(self.squares, self.choice, goodput * goodput),
        )
        return after._replace(choice=_best(after))


def _best(search: ParameterSearch) -> int:
    """The candidate that could be the best: by its mean, and by how little is known of it."""
    fewest = min(search.tries)
    if fewest < FIRST_TRIES:
        return search.tries.index(fewest)
    means = [total / count for total, count in zip(search.sums, search.counts, strict=True)]
    scatter = math.log(1.0 + sum(search.counts)) * _variance(search, means)
    bounds = [
        mean + math.sqrt(scatter / count) for mean, count in zip(means, search.counts, strict=True)
    ]
    return bounds.index(max(bounds))


def _variance(search: ParameterSearch, means: list[float]) -> float:
    """Of an epoch's goodput around the mean of its candidate: taken as the same for all."""
    explained = sum(count * mean * mean for count, mean in zip(search.counts, means, strict=True))
    freedom = max(sum(search.counts) - len(search.values), 1.0)
    return max(sum(search.squares) - explained, 0.0) / freedom


def _with(amounts: tuple[float, ...], place: int, amount: float) -> tuple[float, ...]:
    """All grown older by an epoch, and one of them more by an amount."""
    older = [_DECAY * each for each in amounts]
    older[place] += amount
    return tuple(older)
