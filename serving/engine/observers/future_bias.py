"""The ratio of true to predicted future tokens of programs, so that policies can correct it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.engine.observers.decayed_sums import DecayedSums, DecayedSumsState
from serving.requests import MAX_VALUE, Floats, Ints
from serving.slo import Slo

MEMORY_CALLS = 1024
"""A call that many calls ago has the weight 1/e."""

PRIOR_CALLS = 64.0
"""Weight of the prior, in calls: one program's future may be twice too long by chance.

The prior of a user is the ratio of all users; theirs is 1.
"""

MAX_RATIO = 8.0
"""Limit on a ratio, and on its inverse."""

MAX_SHARED_RATIO = 4.0
"""Limit on the ratio of all users, and on its inverse, where it is the prior of a user."""

CHANCE = 2.0
"""A user's ratio counts as chance, and is taken as 1, if |log(ratio)| <= CHANCE / sqrt(calls).

`calls` are those of all users, with PRIOR_CALLS. Other ratios are moved towards 1 by that factor.
"""


class _StageFuture(NamedTuple):
    """A program's predicted decode tokens around one stage; None without a prediction.

    Attributes:
        after: tokens after this stage, as its first call predicted.
        before: the `after` of the stage before it: tokens of this stage and of those after it.
    """

    stage: int
    after: float | None
    before: float | None


class FutureBias:
    """The ratio of true to predicted decode tokens of programs after their first stage, by user.

    Predicted tokens of a stage = previous future - current future, divided evenly among its calls.
    Each call's share is compared with the tokens that it decoded. Over a program these differences
    sum to the future that its first call predicted. A program that is aborted counts as far as it
    ran. So the ratio is not learned only from programs with a short predicted future, which
    policies prefer to admit.
    """

    def __init__(self) -> None:
        self._stages: dict[int, _StageFuture] = {}  # program -> its latest stage
        self._predicted: dict[str, float] = {}  # running call -> predicted decode tokens
        self._sums = DecayedSums(MEMORY_CALLS)  # calls, predicted tokens, decoded tokens

    def begin(self, user: int) -> None:
        """Forget what this number stood for: it belongs to a new user from now on."""
        self._sums.begin(user)

    def arrived(self, request_id: str, program: int, slo: Slo, *, is_new: bool) -> None:
        """Note the future that a call of this program predicts at its arrival.

        Args:
            is_new: whether it is the first call of its program.
        """
        after = None if slo.future is None else min(slo.future.decode_tokens, MAX_VALUE)
        latest = None if is_new else self._stages.get(program)
        if latest is None:
            latest = _StageFuture(slo.stage, after, None)
        elif slo.stage > latest.stage:
            latest = _StageFuture(slo.stage, after, latest.after)
        self._stages[program] = latest
        if slo.stage == latest.stage and after is not None and latest.before is not None:
            self._predicted[request_id] = (latest.before - after) / slo.stage_calls

    def ended(self, request_id: str, user: int, output_tokens: int, *, is_complete: bool) -> None:
        """Count a call of this user that ended; an aborted call does not count.

        Args:
            is_complete: whether its answer is complete.
        """
        predicted = self._predicted.pop(request_id, None)
        if predicted is not None and is_complete:
            self._sums.add(user, predicted, output_tokens)

    def ratios(self, users: Ints) -> Floats:
        """The factor by which to correct futures predicted for each of these users, (n,)."""
        of_all = _ratio(self._sums.of_all, np.ones(1))
        prior = np.clip(of_all, 1.0 / MAX_SHARED_RATIO, MAX_SHARED_RATIO)
        ratio = _ratio(self._sums.of_users(users), prior)
        by_chance = np.exp(CHANCE / np.sqrt(PRIOR_CALLS + self._sums.of_all[0]))
        return ratio / np.clip(ratio, 1.0 / by_chance, by_chance)

    def state(self, users: Ints) -> DecayedSumsState:
        """What was learned, of these users alone; programs that have not ended are left out."""
        return self._sums.state(users)

    def restore(self, state: DecayedSumsState) -> None:
        """Begin with what was learned; the users of the state are numbered from 0."""
        self._sums.restore(state)


def _ratio(sums: Floats, prior: Floats) -> Floats:
    """Decoded tokens / predicted tokens, with PRIOR_CALLS added that have the prior ratio, (n,).

    Args:
        sums: calls, predicted tokens, decoded tokens, (3, n) or (3,).
        prior: (1,).
    """
    calls, predicted, decoded = sums
    # The added calls decode as much as the mean call.
    added = PRIOR_CALLS * np.where(decoded > 0.0, decoded, 1.0) / np.maximum(calls, 1.0)
    decoded = decoded + added
    # Predicted tokens may sum to less than 0: a program's future may grow from stage to stage.
    predicted = np.clip(predicted + added / prior, decoded / MAX_RATIO, decoded * MAX_RATIO)
    ratio: Floats = decoded / predicted
    return ratio
