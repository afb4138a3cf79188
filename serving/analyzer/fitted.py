"""FittedLengths: a length forest with its calibration scores; fit, save, load."""

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
"""Fewest finished calls that a forest is fitted on."""

MAX_CALLS = 5000
"""Largest number of newest calls that a forest is fitted on: seconds of fitting, hundreds of
kilobytes."""

_FOLDS = 4  # of the calls by time; each but the first is predicted from those before it


@dataclass(frozen=True, slots=True)
class FittedLengths:
    """The result of a fit.

    Attributes:
        scores: the level of each true length in a prediction made without it, oldest first; they
            calibrate the forest's levels.
        num_calls: number of calls that the forest was fitted on.
        trained_until_s: when the last of them began; later calls are unknown to the model.
    """

    forest: LengthForest
    scores: tuple[Score, ...]
    num_calls: int
    trained_until_s: float

    def save(self, path: Path) -> None:
        """Write the model to a file, atomically: the former file is replaced at the end.

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
            ModelUnreadable: the file or the permission to read it is missing.
            CorruptModel: the file is damaged, or was not written by `save`.
            UnknownModelVersion: it was written by another version of the program.
        """
        document = model_file.load(path)
        return cls(
            forest=LengthForest(document.arrays),
            scores=tuple(map(Score, document.steps.tolist(), document.levels.tolist())),
            num_calls=document.num_calls,
            trained_until_s=document.trained_until_s,
        )


def fit(samples: Sequence[Sample], *, seed: int) -> FittedLengths:
    """Fit a length model to finished calls; deterministic for a seed. Takes seconds.

    The calibration scores come from forward validation: the calls are cut into chronological
    folds, and each but the first is predicted by a forest of the folds before it. Like production
    this predicts new runs; out-of-bag predictions would use other calls of the same run.

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
        for index in range(cut, end):
            level = forest.predict(vectors[index]).level(float(tokens[index]))
            scores.append(Score(int(steps[index]), level))
    return scores
