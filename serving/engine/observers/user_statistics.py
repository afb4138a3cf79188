"""What is counted and learned of each user: tokens served, and corrections of predictions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.engine.observers.decayed_sums import DecayedSumsState
from serving.engine.observers.default_length import DefaultLength, DefaultLengthState
from serving.engine.observers.future_bias import FutureBias
from serving.engine.observers.length_bias import LengthBias, LengthBiasState
from serving.engine.observers.prefix_hit_rate import PrefixHitRate
from serving.engine.observers.service_counters import FAIR_MEMORY_S, ServedName, ServiceCounters
from serving.requests import Floats, Ints
from serving.slo import Slo

MAX_USERS = 256
"""Users in a state: the latest. With as many answers as are kept of each it has 0.8 MB."""


class UserState(NamedTuple):
    """What is kept of users, in the order of `names`; plain data."""

    names: list[ServedName]
    length_bias: LengthBiasState
    future_bias: DecayedSumsState
    default_length: DefaultLengthState
    prefix_hit_rate: DecayedSumsState


class UserStatistics:
    """The users of an engine by number, and what is learned from their ended requests.

    Attributes:
        counters: the tokens served to each user.
        future_bias: must also be told of arrivals.
    """

    def __init__(self) -> None:
        self.counters = ServiceCounters(lifted=True, memory_s=FAIR_MEMORY_S)
        self.future_bias = FutureBias()
        self._length_bias = LengthBias()
        self._default_length = DefaultLength()
        self._prefix_hit_rate = PrefixHitRate()
        self._learned_by_user: dict[str, Floats] = {}
        self._num_learned = -1  # rows of these columns; -1: to be computed again

    def open(self, name: str, now_s: float) -> int:
        """Count a request of this user that arrives; returns the user's number."""
        is_new = not self.counters.knows(name, now_s)
        number = self.counters.open(name, now_s)
        if is_new:
            self._num_learned = -1
            self._length_bias.begin(number)
            self.future_bias.begin(number)
            self._default_length.begin(number)
            self._prefix_hit_rate.begin(number)
        return number

    def close(self, number: int, now_s: float) -> None:
        """Count a request of this user that ended."""
        self.counters.close(number, now_s)
        self._num_learned = -1

    def learn_length(self, number: int, slo: Slo, output_tokens: int) -> None:
        """Learn from a complete answer to this user, or the first of its two parts.

        Of at least one token.
        """
        self._num_learned = -1
        if slo.length is None:
            self._default_length.ended(number, output_tokens)
        else:
            self._length_bias.ended(number, slo.length, output_tokens)

    def learn_hits(self, number: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Learn from the prompt of a call of this user after its program's first stage."""
        self._prefix_hit_rate.ended(number, prompt_tokens, cached_tokens)

    def learned(self, users: Ints) -> dict[str, Floats]:
        """The columns that are learned, for each of these users."""
        num_users = int(users.max(initial=-1)) + 1  # typically far fewer than requests
        if self._num_learned < num_users:
            numbers, self._num_learned = np.arange(num_users), num_users
            self._learned_by_user = {
                "length_ratio": self._length_bias.ratios(numbers),
                "future_ratio": self.future_bias.ratios(numbers),
                "default_length": self._default_length.lengths(numbers),
                "prefix_hit_rate": self._prefix_hit_rate.rates(numbers),
            }
        return {name: values.take(users, axis=0) for name, values in self._learned_by_user.items()}

    def state(self, now_s: float) -> UserState:
        """What is kept of the latest MAX_USERS users."""
        users = self.counters.latest(now_s, MAX_USERS)
        return UserState(
            self.counters.state(users, now_s),
            self._length_bias.state(users),
            self.future_bias.state(users),
            self._default_length.state(users),
            self._prefix_hit_rate.state(users),
        )

    def restore(self, state: UserState, now_s: float, *, age_s: float) -> None:
        """Begin with the users of a state, as they are after `age_s` seconds without requests."""
        self.counters.restore(state.names, now_s, age_s=age_s)
        self._length_bias.restore(state.length_bias)
        self.future_bias.restore(state.future_bias)
        self._default_length.restore(state.default_length)
        self._prefix_hit_rate.restore(state.prefix_hit_rate)
