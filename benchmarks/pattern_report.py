"""The figures of benchmarks/patterns.py, as tables or as one JSON object."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import exit_code, parser_of, say
from benchmarks.data_files import BadData, DataMissing
from benchmarks.leave_one_out import PLACEMENTS, SEEDS, SIZES
from benchmarks.pattern_figures import (
    CLUSTERING_LIMIT_PERCENT,
    STDERR,
    Figures,
    NothingPredicted,
    by_revealed,
    codec_figures,
    error_figures,
    flat,
    slowest,
)
from benchmarks.pattern_speed import measure_speed, synthetic_graphs
from benchmarks.step_time import DATASETS, load_graphs
from patterns import BEST_K, Formulation, PatternGraph

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "agentic"


def main(documentation: str | None, given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(documentation)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the workflows")
    parser.add_argument("--only", choices=["errors", "speed"], help="measure only one of them")
    return exit_code(partial(measure, parser.parse_args(given)))


def measure(arguments: argparse.Namespace) -> None:
    """Measure and print; raises BadData."""
    are_synthetic = False
    try:
        graphs = {dataset: load_graphs(arguments.data, dataset) for dataset in DATASETS}
    except DataMissing as error:
        if arguments.only != "speed":
            raise
        say(f"{error}\nUsing synthetic runs instead.")
        graphs = {dataset: synthetic_graphs(dataset) for dataset in DATASETS}
        are_synthetic = True
    try:
        errors = _errors(graphs) if arguments.only != "speed" else {}
    except NothingPredicted as error:
        raise BadData(arguments.data / DATASETS[error.dataset][0], str(error)) from error
    speed = _speed(graphs) if arguments.only != "errors" else {}
    if arguments.json:
        print(json.dumps(_one_object(errors, speed, are_synthetic=are_synthetic), indent=1))
    else:
        _print(errors, speed, are_synthetic=are_synthetic)


def _errors(graphs: dict[str, list[PatternGraph]]) -> dict[str, Figures]:
    figures = {}
    for dataset, runs in graphs.items():
        STDERR.print(f"{dataset}: predicting every stage of {len(runs)} runs ...")
        figures[dataset] = codec_figures(runs) | error_figures(dataset, runs)
    return figures


def _speed(graphs: dict[str, list[PatternGraph]]) -> dict[str, Figures]:
    figures = {}
    for dataset, runs in graphs.items():
        STDERR.print(f"{dataset}: measuring speed ...")
        figures[dataset] = measure_speed(runs)
    return figures


def _one_object(
    errors: dict[str, Figures], speed: dict[str, Figures], *, are_synthetic: bool
) -> Figures:
    """All figures prefixed with their application, and the slowest times without a prefix."""
    figures: Figures = {"times_of_stages": "made up" if are_synthetic else "simulated"}
    if speed:
        figures |= slowest(speed)
    return figures | flat(errors) | flat(speed)


def _print(errors: dict[str, Figures], speed: dict[str, Figures], *, are_synthetic: bool) -> None:
    for dataset, own_figures in errors.items():
        print_errors(dataset, own_figures)
    if speed:
        print_speed(speed, are_synthetic)
    if errors:
        print()
    for dataset, own_figures in errors.items():
        print(f"{dataset}: largest stage document {own_figures['codec_max_bytes']} bytes")
    for dataset, own_figures in errors.items():
        print_checks(dataset, own_figures)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with minimal column widths; all columns except the first align right."""
    cells = [[_cell(value) for value in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for row in cells:
        first, *others = (cell for cell in zip(row, widths, strict=True))
        print("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]))


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1.0 else f"{value:.2f}"


def print_errors(dataset: str, figures: Figures) -> None:
    """Print the tables of one dataset."""
    print(
        f"\n=== {dataset}: {figures['runs']} runs of {figures['seconds_min']:.0f} to"
        f" {figures['seconds_max']:.0f} simulated seconds; {figures['stages_predicted']} of"
        f" {figures['stages']} stages predicted ==="
    )
    _print_formulations(figures)
    _print_bests(figures)
    _print_sizes(figures)
    print(
        f"\nClustered to 10% ({SEEDS} seeds): relative error {figures['clustered_accumulated']:.4f}"
        f" (simulated times), {figures['clustered_cost_percent']:+.1f}% against all patterns;"
        f"\n{100 * figures['clustered_lost']:.1f}% of the stages can no longer be predicted."
    )


def _print_formulations(figures: Figures) -> None:
    estimates = (("nearest-one", "nearest_one"), (f"best-{BEST_K}", "best_k"))
    titles = [title for title, _ in estimates]
    print_table(
        "Mean relative error of the next stage's share (simulated times)",
        ("share", *titles),
        [
            (f.value, *(figures[f"{name}_{f.name.lower()}"] for _, name in estimates))
            for f in Formulation
        ],
    )
    nearest, best = (by_revealed(figures, name) for _, name in estimates)
    print_table(
        "The same by stages revealed, accumulated share (simulated times)",
        ("revealed", "stages", *titles),
        [(n, figures[f"stages_after_{n}"], nearest[n], best[n]) for n in best],
    )
    print_table(
        "Position error of the stage's end, in % of the run's simulated duration",
        ("placed by", *titles),
        [
            (
                name.replace("_", " "),
                *(figures[f"{estimate}_position_{name}_percent"] for _, estimate in estimates),
            )
            for name in PLACEMENTS
        ],
    )


def _print_bests(figures: Figures) -> None:
    print_table(
        "By number of matches: relative error of the accumulated share (simulated times), and\n"
        "position error as production places the stage's end, in % of simulated duration",
        ("best", "relative", "position %"),
        [
            (
                best,
                figures[f"best_{best}_accumulated"],
                figures[f"best_{best}_position_as_production_percent"],
            )
            for best in figures["bests"]
        ],
    )


def _print_sizes(figures: Figures) -> None:
    columns = (
        "predicted",
        "accumulated",
        "position_as_production_percent",
        "position_even_percent",
    )
    print_table(
        f"By size of the library ({SEEDS} seeds), over predicted stages: relative error of the\n"
        "accumulated share (simulated times); position error in % of simulated duration, as\n"
        "production and by an even split over the library's mean number of stages",
        ("patterns", "predicted", "relative", "position %", "even split %"),
        [
            (size, *(figures[f"library_{size}_{column}"] for column in columns))
            for size in (*SIZES, "all")
        ],
    )


def print_checks(dataset: str, figures: Figures) -> None:
    """Print each check as yes or no; with the stages after which the error rises."""
    rises = ", ".join(f"{n - 1} to {n}" for n in figures["error_rises_after"]) or "nowhere"
    checks = {
        f"accumulated best-{BEST_K} has the lowest error": "check_accumulated_best_k_is_lowest",
        f"error falls from first to last stage revealed (it rises: {rises})": "check_error_falls",
        f"clustering to 10% costs less than {CLUSTERING_LIMIT_PERCENT:g}%": (
            "check_clustering_costs_little"
        ),
    }
    for text, name in checks.items():
        print(f"{'yes' if figures[name] else 'NO ':3}  {dataset}: {text}")


def print_speed(figures: dict[str, Figures], are_synthetic: bool) -> None:
    """Print wall times, one column per application."""
    source = (
        "made-up runs"
        if are_synthetic
        else "the workflows' runs, their simulated times and lengths"
    )
    names = list(next(iter(figures.values())))
    print_table(
        f"Measured wall time, one thread; patterns are {source}, jittered",
        ("", *figures),
        [(name, *(own_figures[name] for own_figures in figures.values())) for name in names],
    )
