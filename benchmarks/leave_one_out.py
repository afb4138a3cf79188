"""How well past runs foretell the next stage: each run in turn is the live one.

All others are the library, and the kernel is fitted on them alone. A stage is foretold when those
before it are known, and which calls it makes, but neither how long they are nor what follows.
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


class Foretold(NamedTuple):
    """One stage of one live run, as it was and as it was foretold.

    Attributes:
        run: number of the live run.
        num_revealed: stages before it, 1 or more.
        num_stages: of the live run, which no estimate knows.
        mean_num_stages: of the runs in the library, each as often as it counts.
        estimates: for each number of best matches; None where no past run began alike.
    """

    run: int
    num_revealed: int
    num_stages: int
    mean_num_stages: float
    truth: Outlook
    estimates: dict[int, Estimate | None]

    @property
    def is_predicted(self) -> bool:
        """Whether any past run began alike."""
        return self.estimates[BEST_K] is not None


Errors = list[float]
Placement = Callable[[Foretold, Estimate], float]
"""Where a way to divide a deadline puts the end of a stage, as a share of the run's duration."""


def _even(predicted: Foretold, num_stages: float) -> float:
    began = _began(predicted)
    return began + (1.0 - began) / max(num_stages - predicted.num_revealed, 1.0)


def _began(predicted: Foretold) -> float:
    return predicted.truth.elapsed_s / (predicted.truth.elapsed_s + predicted.truth.rest_s)


def _as_production(predicted: Foretold, estimate: Estimate) -> float:
    began = _began(predicted)
    return began + amortized_s(
        1.0 - began, share_before=estimate.share_before, share=estimate.outlook.share
    )


def _own_seconds(predicted: Foretold, estimate: Estimate) -> float:
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
"""All but the first know where the stage really began."""


def predict(
    library: PatternLibrary, live: KeptPattern, *, bests: Sequence[int] = (BEST_K,)
) -> Iterator[Foretold]:
    """Every stage of a live run but its first, foretold from those before it."""
    truths = tabulate([live.stages]).outlooks[0]
    weights = [pattern.weight for pattern in library.patterns]
    counts = [len(pattern.stages) for pattern in library.patterns]
    match = library.matcher.begin()
    for num_revealed, stage in enumerate(live.stages):
        if num_revealed:
            begun = [(call.kind, call.identity) for call in stage.calls]
            yield Foretold(
                run=live.key,
                num_revealed=num_revealed,
                num_stages=len(live.stages),
                mean_num_stages=float(np.average(counts, weights=weights)),
                truth=Outlook(*truths[num_revealed].tolist()),
                estimates={best: match.estimate(begun, best=best) for best in bests},
            )
        match = match.extend(stage)


def relative_errors(
    predicted: Iterable[Foretold], best: int, formulation: Formulation = Formulation.ACCUMULATED
) -> Errors:
    """Of a formulation's share, each against that formulation's own truth."""
    return [
        abs(share_of(estimate.outlook, formulation) / share_of(stage.truth, formulation) - 1.0)
        for stage in predicted
        if (estimate := stage.estimates[best])
    ]


def position_errors(predicted: Iterable[Foretold], placement: Placement, best: int) -> Errors:
    """Of where the stage's end is put, in per cent of the run's own duration."""
    return [
        100.0 * abs(placement(stage, estimate) - stage.truth.share)
        for stage in predicted
        if (estimate := stage.estimates[best])
    ]


def mean(errors: Errors) -> float:
    """NaN without errors."""
    return float(np.mean(errors)) if errors else float("nan")


@dataclass(frozen=True)
class SizeErrors:
    """Errors with a library of a size; all over the stages that some past run foretells.

    Attributes:
        foretold: share of the stages for which a past run began alike.
        relative: of the accumulated share.
        placed, even: of the position, in per cent of the duration: as production places it, and
            evenly over the stages left by the library's mean number.
    """

    predicted: float
    relative: float
    placed: float
    even: float


@dataclass(frozen=True)
class ClusterErrors:
    """Relative errors of the accumulated share, over the stages that both libraries foretell.

    Attributes:
        lost: share of the stages that the full library foretells and the medoids do not.
    """

    full: float
    clustered: float
    lost: float

    @property
    def cost_percent(self) -> float:
        """How much more than with the full library; NaN where that makes no error."""
        if not self.full:
            return float("nan")
        return 100.0 * (self.clustered / self.full - 1.0)


class LeaveOneOut:
    """Every run of one application against all the others.

    Args:
        graphs: the runs.
        bests: numbers of best matches to try, apart from BEST_K.
        watch: goes through the runs, and may show how far it got.
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
        self._predicted: dict[int, list[Foretold]] = {}
        for live in watch(self._runs):
            library = PatternLibrary(tuple(self._others(live))).fitted()
            self._libraries[live.key] = library
            self._predicted[live.key] = list(predict(library, live, bests=self.bests))

    def _others(self, live: KeptPattern) -> list[KeptPattern]:
        return [run for run in self._runs if run.key != live.key]

    @property
    def predicted(self) -> list[Foretold]:
        """Every stage of every run but the first ones, whether or not another run matches."""
        return [stage for stages in self._predicted.values() for stage in stages]

    def by_revealed(self) -> dict[int, list[Foretold]]:
        """The stages that some run foretells, by the number of stages before them."""
        found: dict[int, list[Foretold]] = {}
        for stage in self.predicted:
            if stage.is_predicted:
                found.setdefault(stage.num_revealed, []).append(stage)
        return dict(sorted(found.items()))

    def with_all(self) -> SizeErrors:
        """With all the other runs."""
        return _size_errors(self.predicted)

    def with_size(self, size: int) -> SizeErrors:
        """With libraries of so many of the other runs, drawn anew for each run and seed."""
        stages: list[Foretold] = []
        for live in self._watch(self._runs):
            others = self._others(live)
            for seed in range(SEEDS):
                drawn = np.random.default_rng((seed, live.key)).permutation(len(others))[:size]
                library = PatternLibrary(tuple(others[row] for row in sorted(drawn)))
                stages += predict(library.fitted(), live)
        return _size_errors(stages)

    def clustered(self) -> ClusterErrors:
        """With medoids of the other runs in their place, for several seeds of the clustering."""
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


def _size_errors(stages: Sequence[Foretold]) -> SizeErrors:
    return SizeErrors(
        predicted=mean([float(stage.is_predicted) for stage in stages]),
        relative=mean(relative_errors(stages, BEST_K)),
        placed=mean(position_errors(stages, _as_production, BEST_K)),
        even=mean(position_errors(stages, PLACEMENTS["even_mean_count"], BEST_K)),
    )
