"""How far the foretold rest of programs was off, so that a policy can correct those to come."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.engine.observers.decayed_sums import DecayedSums
from serving.requests import MAX_VALUE, Floats, Ints
from serving.slo import Slo

MEMORY_CALLS = 1024
"""What came this many calls ago counts 1/e of what comes now."""

PRIOR_CALLS = 64.0
"""So many calls are taken to have been foretold truly before the first; of a user, to have been as
far off as those of all users. One program's futures may be twice too long by chance."""

MOST_OFF, MOST_OF_OTHERS = 8.0, 4.0
"""No future is multiplied or divided by more than the first, and none by more than the second for
how others' were foretold."""

CHANCE = 2.0
"""Over the root of the calls: so far, as a logarithm, futures may be off by chance; others by that
much less."""


class _Told(NamedTuple):
    """Decode tokens that a program's calls of one stage said were to come after it, and what those
    of the stage before it had said; None where nothing was."""

    stage: int
    after: float | None
    before: float | None


class FutureBias:
    """The tokens of later calls over those that were foretold, for each user, by the user's number.

    What the calls of a stage tell of the rest is less than what those before it told by what the
    stage itself was foretold to decode. Over a whole program that adds up to what its first call
    told, and what ends half way counts as far as it came: so nothing is learned of those alone
    that were foretold to be short, and were admitted for that.
    """

    def __init__(self) -> None:
        self._programs: dict[int, _Told] = {}
        self._predicted: dict[str, float] = {}  # tokens of a call that is under way, by its id
        self._sums = DecayedSums(MEMORY_CALLS)  # calls, tokens foretold, tokens that came

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._sums.begin(user)

    def arrived(self, request_id: str, program: int, slo: Slo, *, is_new: bool) -> None:
        """A call of this program arrived.

        Args:
            is_new: whether it is the first of its program.
        """
        after = None if slo.future is None else min(slo.future.decode_tokens, MAX_VALUE)
        told = None if is_new else self._programs.get(program)
        if told is None:
            told = _Told(slo.stage, after, None)
        elif slo.stage > told.stage:
            told = _Told(slo.stage, after, told.after)
        self._programs[program] = told
        if slo.stage == told.stage and after is not None and told.before is not None:
            self._predicted[request_id] = (told.before - after) / slo.stage_calls

    def ended(self, request_id: str, user: int, output_tokens: int, *, is_whole: bool) -> None:
        """This call of this user ended with so many tokens, or was given up."""
        predicted = self._predicted.pop(request_id, None)
        if predicted is not None and is_whole:
            self._sums.add(user, predicted, output_tokens)

    def ratios(self, users: Ints) -> Floats:
        """What a future foretold for each of these users is to be multiplied with: (n,)."""
        of_all = _ratio(self._sums.of_all, np.ones(1))
        others = np.clip(of_all, 1.0 / MOST_OF_OTHERS, MOST_OF_OTHERS)
        ratio = _ratio(self._sums.own(users), others)
        by_chance = np.exp(CHANCE / np.sqrt(PRIOR_CALLS + self._sums.of_all[0]))
        return ratio / np.clip(ratio, 1.0 / by_chance, by_chance)


def _ratio(sums: Floats, prior: Floats) -> Floats:
    """What came over what was foretold, beside PRIOR_CALLS that were off by the prior: (n,)."""
    calls, predicted, came = sums
    usual = PRIOR_CALLS * np.where(came > 0.0, came, 1.0) / np.maximum(calls, 1.0)
    came = came + usual
    # Errors of single programs may add up to less than nothing.
    predicted = np.clip(predicted + usual / prior, came / MOST_OFF, came * MOST_OFF)
    ratio: Floats = came / predicted
    return ratio
