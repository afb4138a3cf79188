"""What the engine measures of itself while it runs: what its steps cost, and what it promised."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.slo import SloKind
from serving.step_cost import Composition, StepSample
from serving.view import StepModel

MOST_SAMPLES = 4096
"""Steps that are kept, if nothing else is asked for."""

MEMORY_STEPS = 4000.0
"""A step this long ago counts 1/e of a new one."""

FIRST_SOLVE_STEPS = 4
SOLVE_STEPS = 64
"""The model is solved anew after its first steps, then whenever their number has doubled, and
from then on this many steps apart."""

OUTLIER_DEVIATIONS = 3.0
OUTLIER_SHARE = 0.5
"""A step is an outlier if it misses what was expected by more than so many typical deviations and
by more than this share of it: where most steps fit exactly, the others are no hiccups yet."""

PRIOR = StepModel(base_s=0.012, token_s=5e-5, sequence_s=0.0, context_s=8e-8, pair_s=3e-9)
"""The shape of a model before its machine has been measured: that of a large GPU and an 8B model.
Once a step has been seen, the shape is scaled by the measured speed."""

PRIOR_WEIGHT = 0.02
PRIOR_STEP = Composition(256, 32, 16384, ((224, 4096),))
"""The prior counts, coefficient by coefficient, as much as this share of one such step."""

_NUM_TERMS = len(StepModel._fields)
_PRIOR = np.array(PRIOR)
_DECAY = 1.0 - 1.0 / MEMORY_STEPS

Floats = NDArray[np.float64]


def _terms(step: Composition) -> tuple[float, ...]:
    """What each coefficient of a StepModel is multiplied with, in their order."""
    context = step.decode_context_tokens
    return (1.0, step.new_tokens, step.num_decodes, context, step.prompt_pairs)


_PRIOR_PULL = PRIOR_WEIGHT * np.square(np.array(_terms(PRIOR_STEP)))


class SloCounts(NamedTuple):
    """How many requests of one kind ended in time, and how many late or never."""

    met: int = 0
    missed: int = 0


class TrackerSnapshot(NamedTuple):
    """The counters at one moment.

    Attributes:
        steps: measured ones.
        lost_blocks: KV blocks taken from requests that had not ended.
        stall_s: seconds of recomputing them, as predicted when they were taken.
        promises: by kind; a kind of which none has ended is left out.
    """

    steps: int
    lost_blocks: int
    stall_s: float
    promises: Mapping[SloKind, SloCounts]


class StepTracker:
    """Fits the cost of a step online, and counts.

    A step's duration is the time until the next one begins, so idle time must be told apart
    (`begin`, `idle`); where the next is planned before it has ended, it is given (`took`). The
    model is linear with non-negative coefficients, found by least squares over all steps, of which
    older ones count exponentially less (MEMORY_STEPS), with a weak prior.

    Outliers: the steps since the last solution are judged together. A typical deviation is 1.48
    times the median of their absolute residuals against the last model. A step further away than
    OUTLIER_DEVIATIONS of those, and than OUTLIER_SHARE of what was expected, counts in inverse
    proportion to its distance (Huber's weights, one round). A hiccup so has the pull of a modest
    deviation, however long it was, while a machine that changes its speed for good changes the
    median too and is followed.

    Args:
        most_samples: the latest steps that are kept for a fit of their own.
    """

    def __init__(self, *, most_samples: int = MOST_SAMPLES) -> None:
        self._began_s: float | None = None
        self._composition = PRIOR_STEP
        self._recent: deque[StepSample] = deque(maxlen=most_samples)
        self._steps = 0
        self._solve_at = FIRST_SOLVE_STEPS
        self._solved_steps = 0
        self._model = PRIOR
        self._speed = 1.0  # the measured machine's seconds over the prior's
        self._normal = np.zeros((_NUM_TERMS, _NUM_TERMS))
        self._moment = np.zeros(_NUM_TERMS)
        # Sums in which older steps count less.
        self._decoding = np.zeros(4)  # steps with decodes, their tokens, decodes, contexts
        self._prompts = np.zeros(2)  # prompt tokens, their pairs
        self._all = np.zeros(2)  # steps, their seconds
        self._lost_blocks = 0
        self._stall_s = 0.0
        self._promises: dict[SloKind, SloCounts] = {}

    def begin(self, now_s: float, composition: Composition) -> None:
        """A step of this composition begins; the former one ended with it."""
        if self._began_s is not None:
            self.took(self._composition, now_s - self._began_s)
        self._began_s = now_s if composition[0] else None
        self._composition = composition

    def took(self, composition: Composition, seconds: float) -> None:
        """A step of this composition took so long; one that took no time tells nothing."""
        if seconds > 0:
            self._recent.append(StepSample(composition, seconds))
            self._steps += 1

    def idle(self) -> None:
        """The engine ran dry: what passes until the next step is no step's duration."""
        self._began_s = None

    @property
    def model(self) -> StepModel:
        """What a step costs, as far as it has been measured."""
        if self._steps >= self._solve_at:
            self._fold()
            self._model = self._solve()
            self._solve_at = self._steps + min(self._steps, SOLVE_STEPS)
        return self._model

    @property
    def token_s(self) -> float:
        """Seconds of a decode step: of the usual number of requests, with their contexts."""
        model = self.model
        steps, *sums = self._decoding.tolist()
        tokens, decodes, context = (each / steps for each in sums) if steps else (1.0, 1.0, 0.0)
        return model.seconds(new_tokens=tokens, num_decodes=decodes, decode_context_tokens=context)

    @property
    def mean_step_s(self) -> float:
        """Seconds of a step, whatever it computed; before the first were measured, of a decode."""
        token_s = self.token_s  # folds in what was measured
        steps, seconds = self._all.tolist()
        return seconds / steps if steps else token_s

    @property
    def prefill_token_s(self) -> float:
        """Seconds that one more prompt token adds to a step, after as many as usual."""
        model = self.model
        tokens, pairs = self._prompts.tolist()
        return model.token_s + model.pair_s * (pairs / tokens if tokens else 0.0)

    def stall_s(self, num_blocks: int, block_tokens: int) -> float:
        """Predicted seconds of recomputing so many KV blocks."""
        return num_blocks * block_tokens * self.prefill_token_s

    def lost(self, num_blocks: int, block_tokens: int) -> None:
        """A request that had not ended lost so many KV blocks."""
        self._lost_blocks += num_blocks
        self._stall_s += self.stall_s(num_blocks, block_tokens)

    def ended(self, kind: SloKind, in_time: bool) -> None:
        """A request of this kind came to its end, whatever it was."""
        met, missed = self._promises.get(kind, SloCounts())
        self._promises[kind] = SloCounts(met + in_time, missed + (not in_time))

    def samples(self) -> tuple[StepSample, ...]:
        """The latest measured steps, oldest first."""
        return tuple(self._recent)

    def snapshot(self) -> TrackerSnapshot:
        """The counters as they stand."""
        promises = MappingProxyType(dict(self._promises))
        return TrackerSnapshot(self._steps, self._lost_blocks, self._stall_s, promises)

    def _fold(self) -> None:
        """Add the steps since the last solution to the sums that the next one is made of."""
        num_new = min(self._steps - self._solved_steps, len(self._recent))
        fresh = [self._recent[place] for place in range(-num_new, 0)]
        terms = np.array([_terms(step.composition) for step in fresh], dtype=np.float64)
        seconds = np.array([step.seconds for step in fresh])
        if not self._solved_steps:
            self._speed = float(np.median(seconds / (terms @ _PRIOR)))
            self._model = StepModel(*(self._speed * _PRIOR).tolist())
        weights = _robust_weights(seconds, terms @ np.array(self._model))
        weights *= _DECAY ** np.arange(num_new - 1, -1, -1)
        decay = _DECAY**num_new
        weighted = terms * weights[:, np.newaxis]
        self._normal = decay * self._normal + weighted.T @ terms
        self._moment = decay * self._moment + weighted.T @ seconds
        read = np.array([step.composition.prompt_tokens for step in fresh], dtype=np.float64)
        decoded = np.column_stack([terms[:, 1] - read, terms[:, 2:4]])[terms[:, 2] > 0]
        self._decoding = decay * self._decoding + (len(decoded), *decoded.sum(axis=0))
        self._prompts = decay * self._prompts + (read.sum(), terms[:, 4].sum())
        self._all = decay * self._all + (num_new, seconds.sum())
        self._solved_steps = self._steps

    def _solve(self) -> StepModel:
        """The best non-negative coefficients: one of the plain solutions over fewer terms."""
        normal = self._normal + np.diag(_PRIOR_PULL)
        moment = self._moment + _PRIOR_PULL * self._speed * _PRIOR
        best, least = np.zeros(_NUM_TERMS), 0.0
        for count in range(_NUM_TERMS, 0, -1):
            choices = np.array(list(combinations(range(_NUM_TERMS), count)))
            parts = normal[choices[:, :, np.newaxis], choices[:, np.newaxis, :]]
            solutions = np.linalg.solve(parts, moment[choices][:, :, np.newaxis])[:, :, 0]
            for chosen, solution in zip(choices, solutions, strict=True):
                if (solution < 0).any():
                    continue
                error = -float(solution @ moment[chosen])  # above that of all zeros
                if error < least:
                    best, least = np.zeros(_NUM_TERMS), error
                    best[chosen] = solution
            if count == _NUM_TERMS and least < 0:
                break  # it is the minimum without the bounds
        return StepModel(*best.tolist())


def _robust_weights(seconds: Floats, expected_s: Floats) -> Floats:
    """Huber's weights of steps by how far they are from expected, in (0, 1]; shapes (n,)."""
    away = np.abs(seconds - expected_s)
    typical = 1.4826 * float(np.median(away))
    usual = np.maximum(expected_s, float(np.median(seconds)))
    bound = np.maximum(OUTLIER_DEVIATIONS * typical, OUTLIER_SHARE * usual)
    weights: Floats = bound / np.maximum(away, bound)
    return weights
