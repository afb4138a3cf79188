"""Leave-one-out accuracy of stage predictions: each run in turn is the live run.

All other runs are the library, and the kernel is fitted on them only. A stage is predicted from the
stages before it and from which calls it makes, without their lengths and without later stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from patterns import (
    BEST_K,
    Estimate,
    Formulation,
    KeptPattern,
    Outlook,
    PatternGraph,
    PatternLibrary,
    amortized_s,
    share_of,
    tabulate,
)

BESTS = (1, 2, 4, 8, 12, 16, 24, 32)
SIZES = (1, 2, 4, 8, 16, 32)
SEEDS = 5
CLUSTERED_TO = 0.1


class PredictedStage(NamedTuple):
    """One stage of one live run: the truth and the estimates.

    Attributes:
        run: number of the live run.
        num_revealed: number of stages before it, 1 or more.
        num_stages: of the live run; no estimate may use it.
        mean_num_stages: weighted mean over the runs in the library.
        estimates: number of best matches -> estimate; None if no past run begins like this one.
    """

    run: int
    num_revealed: int
    num_stages: int
    mean_num_stages: float
    truth: Outlook
    estimates: dict[int, Estimate | None]

    @property
    def is_predicted(self) -> bool:
        """Whether any past run begins like this one."""
        return self.estimates[BEST_K] is not None


Errors = list[float]
Placement = Callable[[PredictedStage, Estimate], float]
"""A way to divide a deadline: predicts the end of a stage, as a share of the run's duration."""


def _even(predicted: PredictedStage, num_stages: float) -> float:
    began = _began(predicted)
    return began + (1.0 - began) / max(num_stages - predicted.num_revealed, 1.0)


def _began(predicted: PredictedStage) -> float:
    return predicted.truth.elapsed_s / (predicted.truth.elapsed_s + predicted.truth.rest_s)


def _as_production(predicted: PredictedStage, estimate: Estimate) -> float:
    began = _began(predicted)
    return began + amortized_s(
        1.0 - began, share_before=estimate.share_before, share=estimate.outlook.share
    )


def _own_seconds(predicted: PredictedStage, estimate: Estimate) -> float:
    elapsed_s, outlook = predicted.truth.elapsed_s, estimate.outlook
    return (elapsed_s + outlook.stage_s) / (elapsed_s + outlook.rest_s)


PLACEMENTS: dict[str, Placement] = {
    "accumulated": lambda _, estimate: share_of(estimate.outlook),
    "stage": lambda f, estimate: _began(f) + share_of(estimate.outlook, Formulation.STAGE),
    "remaining": lambda f, estimate: (
        _began(f) + (1.0 - _began(f)) * share_of(estimate.outlook, Formulation.REMAINING)
    ),
    "as_production": _as_production,
    "own_seconds": _own_seconds,
    "even_true_count": lambda f, _: _even(f, f.num_stages),
    "even_mean_count": lambda f, _: _even(f, f.mean_num_stages),
}
"""Name -> placement; all but the first use the stage's true start."""


def predict(
    library: PatternLibrary, live: KeptPattern, *, bests: Sequence[int] = (BEST_K,)
) -> Iterator[PredictedStage]:
    """Predict every stage of a live run except its first, from the stages before it."""
    truths = tabulate([live.stages]).outlooks[0]
    weights = [pattern.weight for pattern in library.patterns]
    counts = [len(pattern.stages) for pattern in library.patterns]
    match = library.matcher.begin()
    for num_revealed, stage in enumerate(live.stages):
        if num_revealed:
            next_calls = [(call.kind, call.identity) for call in stage.calls]
            yield PredictedStage(
                run=live.key,
                num_revealed=num_revealed,
                num_stages=len(live.stages),
                mean_num_stages=float(np.average(counts, weights=weights)),
                truth=Outlook(*truths[num_revealed].tolist()),
                estimates={best: match.estimate(next_calls, best=best) for best in bests},
            )
        match = match.extend(stage)


def relative_errors(
    predicted: Iterable[PredictedStage],
    best: int,
    formulation: Formulation = Formulation.ACCUMULATED,
) -> Errors:
    """Relative errors of a formulation's share, against the true share of that formulation."""
    return [
        abs(share_of(estimate.outlook, formulation) / share_of(stage.truth, formulation) - 1.0)
        for stage in predicted
        if (estimate := stage.estimates[best])
    ]


def position_errors(predicted: Iterable[PredictedStage], placement: Placement, best: int) -> Errors:
    """Absolute errors of the predicted end of a stage, in per cent of the run's duration."""
    return [
        100.0 * abs(placement(stage, estimate) - stage.truth.share)
        for stage in predicted
        if (estimate := stage.estimates[best])
    ]


def mean(errors: Errors) -> float:
    """The mean error; NaN without errors."""
    return float(np.mean(errors)) if errors else float("nan")


@dataclass(frozen=True)
class SizeErrors:
    """Mean errors with a library of one size, over the stages that could be predicted.

    Attributes:
        predicted: share of the stages that could be predicted.
        relative: relative error of the accumulated share.
        placed, even: position errors, in per cent of the duration: as production places the
            stage's end, and by an even split over the library's mean number of stages.
    """

    predicted: float
    relative: float
    placed: float
    even: float


@dataclass(frozen=True)
class ClusterErrors:
    """Relative errors of the accumulated share, over the stages that both libraries predict.

    Attributes:
        lost: share of the stages that the full library predicts and the medoids do not.
    """

    full: float
    clustered: float
    lost: float

    @property
    def cost_percent(self) -> float:
        """By how much the error exceeds that of the full library; NaN if the latter is 0."""
        if not self.full:
            return float("nan")
        return 100.0 * (self.clustered / self.full - 1.0)


class LeaveOneOut:
    """Predicts every run of one application from all the others.

    Args:
        graphs: the runs.
        bests: numbers of best matches to try, in addition to BEST_K.
        watch: iterates over the runs, and may show the progress.
    """

    def __init__(
        self,
        graphs: Sequence[PatternGraph],
        *,
        bests: Sequence[int] = BESTS,
        watch: Callable[[Sequence[KeptPattern]], Iterable[KeptPattern]] = iter,
    ) -> None:
        self.bests = tuple(sorted({*bests, BEST_K}))
        self._watch = watch
        self._runs = [KeptPattern(key, graph.stages, 0.0) for key, graph in enumerate(graphs)]
        self._libraries: dict[int, PatternLibrary] = {}
        self._predicted: dict[int, list[PredictedStage]] = {}
        for live in watch(self._runs):
            library = PatternLibrary(tuple(self._others(live))).fitted()
            self._libraries[live.key] = library
            self._predicted[live.key] = list(predict(library, live, bests=self.bests))

    def _others(self, live: KeptPattern) -> list[KeptPattern]:
        return [run for run in self._runs if run.key != live.key]

    @property
    def predicted(self) -> list[PredictedStage]:
        """All stages of all runs except the first stages, with and without an estimate."""
        return [stage for stages in self._predicted.values() for stage in stages]

    def by_revealed(self) -> dict[int, list[PredictedStage]]:
        """The stages with an estimate, by the number of stages before them."""
        by_revealed: dict[int, list[PredictedStage]] = {}
        for stage in self.predicted:
            if stage.is_predicted:
                by_revealed.setdefault(stage.num_revealed, []).append(stage)
        return dict(sorted(by_revealed.items()))

    def with_all(self) -> SizeErrors:
        """The errors with all other runs as the library."""
        return _size_errors(self.predicted)

    def with_size(self, size: int) -> SizeErrors:
        """The errors with `size` of the other runs, drawn at random for each run and seed."""
        stages: list[PredictedStage] = []
        for live in self._watch(self._runs):
            others = self._others(live)
            for seed in range(SEEDS):
                drawn = np.random.default_rng((seed, live.key)).permutation(len(others))[:size]
                library = PatternLibrary(tuple(others[row] for row in sorted(drawn)))
                stages += predict(library.fitted(), live)
        return _size_errors(stages)

    def clustered(self) -> ClusterErrors:
        """The errors with medoids of the other runs as the library, over several seeds."""
        full: Errors = []
        clustered: Errors = []
        num_lost = 0
        for live in self._watch(self._runs):
            library = self._libraries[live.key]
            num_medoids = max(1, round(CLUSTERED_TO * len(library)))
            for seed in range(SEEDS):
                stages = predict(library.compacted(num_medoids, seed=seed), live)
                for before, after in zip(self._predicted[live.key], stages, strict=True):
                    if after.is_predicted:
                        full += relative_errors([before], BEST_K)
                        clustered += relative_errors([after], BEST_K)
                    else:
                        num_lost += before.is_predicted
        num_stages = max(len(full) + num_lost, 1)
        return ClusterErrors(mean(full), mean(clustered), num_lost / num_stages)


def _size_errors(stages: Sequence[PredictedStage]) -> SizeErrors:
    return SizeErrors(
        predicted=mean([float(stage.is_predicted) for stage in stages]),
        relative=mean(relative_errors(stages, BEST_K)),
        placed=mean(position_errors(stages, _as_production, BEST_K)),
        even=mean(position_errors(stages, PLACEMENTS["even_mean_count"], BEST_K)),
    )
