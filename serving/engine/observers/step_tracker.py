"""Measurements of the running engine: the duration of its steps, lost KV blocks, SLOs met."""

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

MAX_SAMPLES = 4096
"""Default number of measured steps that are kept."""

MEMORY_STEPS = 4000.0
"""A step that many steps ago has the weight 1/e."""

FIRST_SOLVE_STEPS = 4
SOLVE_STEPS = 64
"""The model is fitted after the first FIRST_SOLVE_STEPS steps, again whenever their number has
doubled, and every SOLVE_STEPS steps once that is less."""

OUTLIER_DEVIATIONS = 3.0
OUTLIER_SHARE = 0.5
"""A step is an outlier if its residual exceeds OUTLIER_DEVIATIONS typical deviations and
OUTLIER_SHARE of its expected duration (of the median duration, if that is longer). Without the
second bound any step would be an outlier that fits less exactly than most."""

PRIOR = StepModel(base_s=0.012, token_s=5e-5, sequence_s=0.0, context_s=8e-8, pair_s=3e-9)
"""The model before any step is measured: that of a large GPU with an 8B model. The first measured
steps scale it to their speed."""

PRIOR_WEIGHT = 0.02
PRIOR_STEP = Composition(256, 32, 16384, ((224, 4096),))
"""The weight of the prior, for each coefficient by itself: PRIOR_WEIGHT of one PRIOR_STEP."""

_NUM_TERMS = len(StepModel._fields)
_PRIOR = np.array(PRIOR)
_DECAY = 1.0 - 1.0 / MEMORY_STEPS

Floats = NDArray[np.float64]


def _terms(step: Composition) -> tuple[float, ...]:
    """The factor of each coefficient of a StepModel, in their order."""
    context = step.decode_context_tokens
    return (1.0, step.new_tokens, step.num_decodes, context, step.prompt_pairs)


_PRIOR_PULL = PRIOR_WEIGHT * np.square(np.array(_terms(PRIOR_STEP)))


class SloCounts(NamedTuple):
    """Requests of one SLO kind that met their SLO, and that missed it (late or incomplete)."""

    met: int = 0
    missed: int = 0


class TrackerSnapshot(NamedTuple):
    """The counters at one moment.

    Attributes:
        steps: number of measured steps.
        step_s: their seconds.
        lost_blocks: KV blocks taken from requests that had not ended.
        stall_s: seconds of recomputing these blocks, as predicted when they were taken.
        slo_counts: by SLO kind; a kind without ended requests is left out.
    """

    steps: int
    step_s: float
    lost_blocks: int
    stall_s: float
    slo_counts: Mapping[SloKind, SloCounts]


class StepTrackerState(NamedTuple):
    """What the model of a step's duration is fitted from: the attributes of a StepTracker."""

    speed: float
    model: StepModel
    normal: list[list[float]]
    moment: list[float]
    decoding: list[float]
    prompts: list[float]
    all: list[float]


class StepTracker:
    """Fits the duration of a step while the engine runs, and counts.

    A step's duration is either the time until the next step begins (`begin`, with `idle` before
    pauses), or given by the caller, for steps that overlap (`measured`). The model is linear with
    non-negative coefficients: least squares over all steps with a weak prior, where the weight of
    a step decays with its age (MEMORY_STEPS).

    Outliers are found among the steps since the last fit. A typical deviation is 1.48 times the
    median of their absolute residuals under the last model. A step is an outlier if its residual
    exceeds both bounds (OUTLIER_DEVIATIONS, OUTLIER_SHARE). Its weight is then bound / residual
    (Huber's weights, one round). So a hiccup of any length pulls the fit no more than a residual at
    the bound. A lasting change of the machine's speed changes the median too, so the model follows.

    Args:
        max_samples: number of measured steps that are kept; the latest.
    """

    def __init__(self, *, max_samples: int = MAX_SAMPLES) -> None:
        self._began_s: float | None = None
        self._composition = PRIOR_STEP
        self._recent: deque[StepSample] = deque(maxlen=max_samples)
        self._steps = 0
        self._step_s = 0.0
        self._solve_at = FIRST_SOLVE_STEPS
        self._solved_steps = 0
        self._model = PRIOR
        self._speed = 1.0  # measured duration / duration under the prior
        self._normal = np.zeros((_NUM_TERMS, _NUM_TERMS))
        self._moment = np.zeros(_NUM_TERMS)
        # Sums over steps, discounted by age.
        self._decoding = np.zeros(4)  # steps with decodes, their tokens, decodes, contexts
        self._prompts = np.zeros(2)  # prompt tokens, their pairs
        self._all = np.zeros(2)  # steps, their seconds
        self._lost_blocks = 0
        self._stall_s = 0.0
        self._slo_counts: dict[SloKind, SloCounts] = {}

    def begin(self, now_s: float, composition: Composition) -> None:
        """A step of this composition begins, and the step before it ends."""
        if self._began_s is not None:
            self.measured(self._composition, now_s - self._began_s)
        self._began_s = now_s if composition[0] else None
        self._composition = composition

    def measured(self, composition: Composition, seconds: float) -> None:
        """Add a step of this composition; a duration of 0 is no measurement and is skipped."""
        if seconds > 0:
            self._recent.append(StepSample(composition, seconds))
            self._steps += 1
            self._step_s += seconds

    def idle(self) -> None:
        """The engine has no work: the time until the next step is not part of a step."""
        self._began_s = None

    @property
    def model(self) -> StepModel:
        """The fitted duration of a step; fitted again if enough steps were added (SOLVE_STEPS)."""
        if self._steps >= self._solve_at:
            self._fold()
            self._model = self._solve()
            self._solve_at = self._steps + min(self._steps, SOLVE_STEPS)
        return self._model

    @property
    def token_s(self) -> float:
        """Seconds of a decode step with the mean number of decodes and of context tokens."""
        model = self.model
        tokens, decodes, context = self._mean_decode_step()
        return model.seconds(new_tokens=tokens, num_decodes=decodes, decode_context_tokens=context)

    def decode_token_s(self, num_decodes: int) -> float:
        """A token's share of a step with this many decodes of the mean context, in seconds."""
        model = self.model
        _, decodes, context = self._mean_decode_step()
        step_s = model.seconds(
            new_tokens=num_decodes,
            num_decodes=num_decodes,
            decode_context_tokens=num_decodes * context / decodes,
        )
        return step_s / num_decodes

    @property
    def mean_step_s(self) -> float:
        """Mean seconds of all steps; those of a decode step while none is measured."""
        token_s = self.token_s  # also adds new steps to the sums
        steps, seconds = self._all.tolist()
        return seconds / steps if steps else token_s

    @property
    def prefill_token_s(self) -> float:
        """Seconds that one more prompt token adds to a step, after the mean number before it."""
        model = self.model
        tokens, pairs = self._prompts.tolist()
        return model.token_s + model.pair_s * (pairs / tokens if tokens else 0.0)

    def _mean_decode_step(self) -> tuple[float, float, float]:
        """Mean tokens, decodes and context tokens of the steps that decode."""
        steps, *sums = self._decoding.tolist()
        tokens, decodes, context = (each / steps for each in sums) if steps else (1.0, 1.0, 0.0)
        return tokens, decodes, context

    def stall_s(self, num_blocks: int, block_tokens: int) -> float:
        """Predicted seconds of recomputing this many KV blocks."""
        return num_blocks * block_tokens * self.prefill_token_s

    def lost(self, num_blocks: int, block_tokens: int) -> None:
        """A request that has not ended lost this many KV blocks."""
        self._lost_blocks += num_blocks
        self._stall_s += self.stall_s(num_blocks, block_tokens)

    def ended(self, kind: SloKind, in_time: bool) -> None:
        """A request of this kind ended; `in_time`: complete, and within its SLO."""
        met, missed = self._slo_counts.get(kind, SloCounts())
        self._slo_counts[kind] = SloCounts(met + in_time, missed + (not in_time))

    def samples(self) -> tuple[StepSample, ...]:
        """The latest measured steps, oldest first."""
        return tuple(self._recent)

    def snapshot(self) -> TrackerSnapshot:
        """The counters now."""
        slo_counts = MappingProxyType(dict(self._slo_counts))
        return TrackerSnapshot(
            self._steps, self._step_s, self._lost_blocks, self._stall_s, slo_counts
        )

    def state(self) -> StepTrackerState:
        """What was measured until the last fit; counters are left out."""
        model = self.model  # also adds new steps to the sums
        return StepTrackerState(
            self._speed,
            model,
            self._normal.tolist(),
            self._moment.tolist(),
            self._decoding.tolist(),
            self._prompts.tolist(),
            self._all.tolist(),
        )

    def restore(self, state: StepTrackerState) -> None:
        """Begin with what another tracker measured on the same machine."""
        self._speed, self._model = state.speed, state.model
        self._normal, self._moment = np.array(state.normal), np.array(state.moment)
        self._decoding, self._prompts = np.array(state.decoding), np.array(state.prompts)
        self._all = np.array(state.all)

    def _fold(self) -> None:
        """Add the steps since the last fit to the sums that the next fit uses."""
        num_new = min(self._steps - self._solved_steps, len(self._recent))
        fresh = [self._recent[index] for index in range(-num_new, 0)]
        terms = np.array([_terms(step.composition) for step in fresh], dtype=np.float64)
        seconds = np.array([step.seconds for step in fresh])
        if not self._all[0]:
            self._speed = float(np.median(seconds / (terms @ _PRIOR)))
            self._model = StepModel(*(self._speed * _PRIOR).tolist())
        weights = _robust_weights(seconds, terms @ np.array(self._model))
        weights *= _DECAY ** np.arange(num_new - 1, -1, -1)
        decay = _DECAY**num_new
        weighted = terms * weights[:, np.newaxis]
        self._normal = decay * self._normal + weighted.T @ terms
        self._moment = decay * self._moment + weighted.T @ seconds
        prefilled = np.array([step.composition.prompt_tokens for step in fresh], dtype=np.float64)
        decoded = np.column_stack([terms[:, 1] - prefilled, terms[:, 2:4]])[terms[:, 2] > 0]
        self._decoding = decay * self._decoding + (len(decoded), *decoded.sum(axis=0))
        self._prompts = decay * self._prompts + (prefilled.sum(), terms[:, 4].sum())
        self._all = decay * self._all + (num_new, seconds.sum())
        self._solved_steps = self._steps

    def _solve(self) -> StepModel:
        """The non-negative coefficients of the least squared error.

        They are the unconstrained solution over their non-zero terms, so all subsets are tried.
        """
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
                error = -float(solution @ moment[chosen])  # minus that of all zeros
                if error < least:
                    best, least = np.zeros(_NUM_TERMS), error
                    best[chosen] = solution
            if count == _NUM_TERMS and least < 0:
                break  # the unconstrained minimum is non-negative
        return StepModel(*best.tolist())


def _robust_weights(seconds: Floats, expected_s: Floats) -> Floats:
    """Huber's weights of steps by their distance from the expected duration, (n,), in (0, 1]."""
    distances = np.abs(seconds - expected_s)
    typical_s = 1.4826 * float(np.median(distances))
    scale_s = np.maximum(expected_s, float(np.median(seconds)))
    bounds = np.maximum(OUTLIER_DEVIATIONS * typical_s, OUTLIER_SHARE * scale_s)
    weights: Floats = bounds / np.maximum(distances, bounds)
    return weights
