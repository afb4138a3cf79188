"""The named figures of benchmarks/patterns.py for one application."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.leave_one_out import (
    PLACEMENTS,
    SIZES,
    LeaveOneOut,
    mean,
    position_errors,
    relative_errors,
)
from patterns import BEST_K, Formulation, PatternGraph, encode_stages

CLUSTERING_LIMIT_PERCENT = 15.0

STDERR = Console(stderr=True)
Figures = dict[str, Any]


class NothingPredicted(Exception):
    """No workflow of a dataset begins like another one, so no errors can be measured."""

    def __init__(self, dataset: str) -> None:
        super().__init__(dataset)

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return str(self.args[0])

    def __str__(self) -> str:
        return "no workflow in it begins like another one, so none can be predicted"


def codec_figures(graphs: Sequence[PatternGraph]) -> Figures:
    """Size of the largest stage document."""
    return {"codec_max_bytes": max(len(encode_stages(graph.stages)) for graph in graphs)}


def error_figures(dataset: str, graphs: Sequence[PatternGraph]) -> Figures:
    """All errors by name: relative errors as fractions, position errors in per cent.

    Raises:
        NothingPredicted: no graph begins like another one.
    """
    results = _leave_one_out(dataset, graphs)
    figures: Figures = {
        "runs": len(graphs),
        "seconds_min": min(graph.critical_seconds for graph in graphs),
        "seconds_max": max(graph.critical_seconds for graph in graphs),
        "bests": results.bests,
        "stages": len(results.predicted),
        "stages_predicted": sum(stage.is_predicted for stage in results.predicted),
    }
    for estimate, best in (("nearest_one", 1), ("best_k", BEST_K)):
        for formulation in Formulation:
            errors = relative_errors(results.predicted, best, formulation)
            figures[f"{estimate}_{formulation.name.lower()}"] = mean(errors)
        for name, placement in PLACEMENTS.items():
            errors = position_errors(results.predicted, placement, best)
            figures[f"{estimate}_position_{name}_percent"] = mean(errors)
        for num_revealed, stages in results.by_revealed().items():
            errors = relative_errors(stages, best)
            figures[f"{estimate}_accumulated_after_{num_revealed}"] = mean(errors)
    for num_revealed, stages in results.by_revealed().items():
        figures[f"stages_after_{num_revealed}"] = len(stages)
    for best in results.bests:
        figures[f"best_{best}_accumulated"] = mean(relative_errors(results.predicted, best))
        placed = position_errors(results.predicted, PLACEMENTS["as_production"], best)
        figures[f"best_{best}_position_as_production_percent"] = mean(placed)
    for size in (*SIZES, "all"):
        errors = results.with_all() if isinstance(size, str) else results.with_size(size)
        figures[f"library_{size}_predicted"] = errors.predicted
        figures[f"library_{size}_accumulated"] = errors.relative
        figures[f"library_{size}_position_as_production_percent"] = errors.placed
        figures[f"library_{size}_position_even_percent"] = errors.even
    clustered = results.clustered()
    figures["clustered_accumulated"] = clustered.clustered
    figures["clustered_lost"] = clustered.lost
    figures["clustered_cost_percent"] = clustered.cost_percent
    return figures | _checks(figures)


def _leave_one_out(dataset: str, graphs: Sequence[PatternGraph]) -> LeaveOneOut:
    def watch(runs: Sequence[Any]) -> Iterable[Any]:
        return track(runs, dataset, console=STDERR, transient=True, disable=not STDERR.is_terminal)

    if len(graphs) < 2:
        raise NothingPredicted(dataset)
    results = LeaveOneOut(graphs, watch=watch)
    if not results.by_revealed():
        raise NothingPredicted(dataset)
    return results


def _checks(figures: Figures) -> Figures:
    """Checks of expected properties, each True or False."""
    shares = {
        f"{estimate}_{formulation.name.lower()}": figures[f"{estimate}_{formulation.name.lower()}"]
        for estimate in ("nearest_one", "best_k")
        for formulation in Formulation
    }
    revealed = by_revealed(figures, "best_k")
    numbers = list(revealed)
    return {
        "check_accumulated_best_k_is_lowest": min(shares, key=shares.__getitem__)
        == "best_k_accumulated",
        "check_error_falls": revealed[numbers[-1]] < revealed[numbers[0]],
        "error_rises_after": [
            after for before, after in pairwise(numbers) if revealed[after] > revealed[before]
        ],
        "check_clustering_costs_little": figures["clustered_cost_percent"]
        < CLUSTERING_LIMIT_PERCENT,
    }


def by_revealed(figures: Figures, estimate: str) -> dict[int, float]:
    """Relative errors of the accumulated share, by the number of stages revealed."""
    start = f"{estimate}_accumulated_after_"
    return {
        int(name.removeprefix(start)): value
        for name, value in figures.items()
        if name.startswith(start)
    }


def flat(figures: dict[str, Figures]) -> Figures:
    """All figures in one object; a name is prefixed with its dataset."""
    return {
        f"{dataset}_{name}": value
        for dataset, own_figures in figures.items()
        for name, value in own_figures.items()
    }


def slowest(figures: dict[str, Figures]) -> Figures:
    """The maximum of each time over all applications."""
    names = next(iter(figures.values()))
    return {name: max(own_figures[name] for own_figures in figures.values()) for name in names}
