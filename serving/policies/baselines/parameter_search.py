"""Online search for a policy's parameter: a discounted upper-confidence-bound bandit.

Source: Wu (2025), section 4.2 (the cutoff p explores thresholds and converges to those with the
most goodput); Garivier and Moulines (2011), On upper-confidence bound policies for switching
bandit problems (older observations count less, so the search follows a changing load).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

MEMORY_EPOCHS = 100.0
"""Age, in epochs, at which an observation has the weight 1/e."""

FIRST_TRIES = 2
"""Epochs of each value before values are compared: the variance is not known earlier."""

_DECAY = math.exp(-1.0 / MEMORY_EPOCHS)


class TunedParameter(NamedTuple):
    """A parameter of a policy that is tuned online, and its candidate values."""

    parameter: str
    values: tuple[float, ...]


TUNED_PARAMETERS: Mapping[str, TunedParameter] = {
    "calm_published": TunedParameter("cutoff", (0.95, 0.8, 0.9, 1.0)),
}
"""Tuned parameters by policy; the search begins with the first value."""


class ParameterSearch(NamedTuple):
    """The state of a search; it has no randomness, so equal observations give equal choices.

    Attributes:
        values: the candidates, at least one.
        choice: index of the candidate for this epoch.
        tries: number of observations of each candidate.
        counts, sums, squares: number, sum and sum of squares of the goodputs observed with each
            candidate, discounted by age.
    """

    values: tuple[float, ...]
    choice: int
    tries: tuple[int, ...]
    counts: tuple[float, ...]
    sums: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: tuple[float, ...]) -> ParameterSearch:
        """A search without observations, which begins with the first value."""
        assert values, "a search needs a candidate"
        zeros = (0.0,) * len(values)
        return cls(values, 0, (0,) * len(values), zeros, zeros, zeros)

    @property
    def value(self) -> float:
        """The parameter's value in this epoch."""
        return self.values[self.choice]

    def observe(self, goodput: float) -> ParameterSearch:
        """The search after an epoch with the present choice and this goodput."""
        after = self._replace(
            tries=tuple(
                num_tries + (index == self.choice) for index, num_tries in enumerate(self.tries)
            ),
            counts=_aged(self.counts, self.choice, 1.0),
            sums=_aged(self.sums, self.choice, goodput),
            squares=_aged(self.squares, self.choice, goodput * goodput),
        )
        return after._replace(choice=_best(after))


def _best(search: ParameterSearch) -> int:
    """Index of the candidate with the highest upper confidence bound."""
    fewest = min(search.tries)
    if fewest < FIRST_TRIES:
        return search.tries.index(fewest)
    means = [total / count for total, count in zip(search.sums, search.counts, strict=True)]
    scale = math.log(1.0 + sum(search.counts)) * _variance(search, means)
    bounds = [
        mean + math.sqrt(scale / count) for mean, count in zip(means, search.counts, strict=True)
    ]
    return bounds.index(max(bounds))


def _variance(search: ParameterSearch, means: list[float]) -> float:
    """Variance of an epoch's goodput around its candidate's mean, assumed equal for all."""
    explained = sum(count * mean * mean for count, mean in zip(search.counts, means, strict=True))
    freedom = max(sum(search.counts) - len(search.values), 1.0)
    return max(sum(search.squares) - explained, 0.0) / freedom


def _aged(amounts: tuple[float, ...], index: int, amount: float) -> tuple[float, ...]:
    """The amounts discounted by one epoch, and a new amount added to one of them."""
    aged = [_DECAY * each for each in amounts]
    aged[index] += amount
    return tuple(aged)
