"""FittedLengths: a forest with the calibration that belongs to it; fit, save, load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serving.analyzer import model_file
from serving.analyzer.forest import LengthForest, fit_forest
from serving.analyzer.samples import Sample, TrainingSet, training_set
from serving.analyzer.step_calibration import Score
from serving.errors import TooFewSamples

MIN_CALLS = 200
"""Fewer finished calls than this are no ground for a forest."""

MAX_CALLS = 5000
"""The newest calls that a forest is fitted on: seconds of fitting, hundreds of kilobytes."""

_FOLDS = 4  # the newest folds but the first are predicted from what came before them


@dataclass(frozen=True, slots=True)
class FittedLengths:
    """What a fit leaves behind.

    Attributes:
        scores: levels at which the true length stood in predictions made without knowing it,
            oldest first; they say what the forest's levels are worth.
        num_calls: how many calls the forest was fitted on.
        trained_until_s: when the last of them began; calls that began later are news.
    """

    forest: LengthForest
    scores: tuple[Score, ...]
    num_calls: int
    trained_until_s: float

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all: what stood there before stays until then.

        Raises:
            ModelNotSaved: the folder cannot be written, or the disk is full.
        """
        model_file.save(
            path,
            model_file.Document(
                arrays=self.forest.arrays,
                steps=np.array([score.step for score in self.scores], dtype=np.int64),
                levels=np.array([score.level for score in self.scores], dtype=np.float64),
                num_calls=self.num_calls,
                trained_until_s=self.trained_until_s,
            ),
        )

    @classmethod
    def load(cls, path: Path) -> FittedLengths:
        """Read what `save` wrote.

        Raises:
            ModelUnreadable: there is no such file, or no right to read it.
            CorruptModel: it is damaged, or was never one of ours.
            UnknownModelVersion: written by another version of the program.
        """
        document = model_file.load(path)
        return cls(
            forest=LengthForest(document.arrays),
            scores=tuple(map(Score, document.steps.tolist(), document.levels.tolist())),
            num_calls=document.num_calls,
            trained_until_s=document.trained_until_s,
        )


def fit(samples: Sequence[Sample], *, seed: int) -> FittedLengths:
    """Learn answer lengths from finished calls; deterministic for a seed. Takes seconds.

    The calibration scores come from forward validation: the calls are cut into chronological
    folds, and each but the first is predicted by a forest of the folds before it. Held-out runs
    are what production meets; out-of-bag predictions would know a call's siblings in its own run.

    Raises:
        TooFewSamples: fewer than MIN_CALLS.
    Source: Lei et al. (2018), split conformal prediction; Wu (2025), section 4.1.
    """
    if len(samples) < MIN_CALLS:
        raise TooFewSamples(len(samples), MIN_CALLS)
    calls = training_set(samples).newest(MAX_CALLS)
    return FittedLengths(
        forest=fit_forest(calls.vectors, calls.output_tokens, seed=seed),
        scores=tuple(_forward_scores(calls, seed=seed)),
        num_calls=len(calls.output_tokens),
        trained_until_s=float(calls.began_s[-1]),
    )


def _forward_scores(calls: TrainingSet, *, seed: int) -> list[Score]:
    vectors, tokens, _, steps = calls
    scores: list[Score] = []
    cuts = [len(tokens) * fold // _FOLDS for fold in range(1, _FOLDS + 1)]
    for cut, end in itertools.pairwise(cuts):
        forest = fit_forest(vectors[:cut], tokens[:cut], seed=seed)
        for place in range(cut, end):
            level = forest.predict(vectors[place]).level(float(tokens[place]))
            scores.append(Score(int(steps[place]), level))
    return scores
