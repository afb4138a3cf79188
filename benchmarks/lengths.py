"""Coverage and tightness of length bounds: our analyzer against empirical quantiles.

    python -m benchmarks.lengths --data ../shared/data [--only NAME ...] [--json]

Each data set is split by time: the first two thirds are training calls; the last third is replayed
as in production, each call estimated at its start and observed at its end. The baselines learn
online as well, from all lengths so far (global) or from those of the call's step (step). At level
0.9, coverage is the share of calls within their bound, and ratio is the mean of bound / truth (0
tokens count as 1). Each baseline is printed at its own level 0.9, and after "=" at our coverage: at
the level, chosen in hindsight, at which its coverage equals ours. "refined" estimates again after
every 50 tokens of an answer; each of these estimates counts.

The data sets, and the synthetic identities of traces without any, are described in length_data.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import exit_code, parser_of, print_result, say
from benchmarks.length_data import DATA_SETS, Split, load
from serving.analyzer.analyzer import LengthEstimate, RequestAnalyzer
from serving.analyzer.calibration import BOUND_INDEX, BOUND_LEVEL
from serving.analyzer.fitted import FittedLengths, fit
from serving.analyzer.forest import fit_regressor
from serving.analyzer.history import StepHistory
from serving.analyzer.samples import Sample, replayed, training_set
from serving.length_sketch import LengthSketch

# Levels of the baselines' quantiles, denser at the long tail.
LEVELS = np.concatenate((np.arange(0.5, 0.99, 0.005), np.arange(0.99, 1.0005, 0.001))).clip(max=1)


@dataclass(frozen=True)
class Quality:
    """Coverage, and mean bound / truth."""

    coverage: float
    ratio: float


def quality(bounds: NDArray[np.float64], truths: NDArray[np.float64]) -> Quality:
    """Coverage and mean ratio of bounds."""
    ratios = np.maximum(bounds, 1) / np.maximum(truths, 1)
    return Quality(float((truths <= bounds).mean()), float(ratios.mean()))


def our_sketches(
    train: list[Sample], test: list[Sample], model: FittedLengths
) -> list[LengthSketch]:
    """The analyzer's sketches of the test calls, which are replayed in order."""
    analyzer = RequestAnalyzer.replay(train, model)
    estimates: dict[int, LengthEstimate] = {}
    sketches: dict[int, LengthSketch] = {}
    for index, has_ended in replayed(test):
        sample = test[index]
        if has_ended:
            analyzer.observe(sample.features, estimates.pop(index), sample.output_tokens)
            continue
        estimates[index] = estimate = analyzer.estimate(sample.features)
        assert estimate.sketch is not None, "a fitted analyzer always has a sketch"
        sketches[index] = estimate.sketch
    return [sketches[index] for index in range(len(test))]


def refined(sketches: Sequence[LengthSketch], test: Sequence[Sample]) -> Quality:
    """Quality of the bounds during generation: estimated again after every 50 tokens."""
    bounds, truths = [], []
    for sketch, sample in zip(sketches, test, strict=True):
        for generated in range(50, sample.output_tokens, 50):
            bound = sketch.upper(BOUND_LEVEL, generated=generated)
            bounds.append(min(bound, sample.features.max_tokens or bound))
            truths.append(sample.output_tokens)
    return quality(np.array(bounds), np.array(truths, float))


def baseline_bounds(
    train: list[Sample], test: list[Sample], *, by_step: bool
) -> NDArray[np.float64]:
    """Empirical quantiles of all lengths known when a call starts; shape (calls, LEVELS).

    A step without any completed call uses the lengths of all steps.
    """
    known: dict[str, list[int]] = {}

    def learn(sample: Sample) -> None:
        insort(known.setdefault(sample.features.identity, []), sample.output_tokens)
        insort(known.setdefault("", []), sample.output_tokens)

    for sample in train:
        learn(sample)
    bounds = np.empty((len(test), len(LEVELS)))
    for index, has_ended in replayed(test):
        if has_ended:
            learn(test[index])
            continue
        ordered = known.get(test[index].features.identity if by_step else "") or known[""]
        ranks = LEVELS * (len(ordered) - 1)
        lows = np.floor(ranks).astype(int)
        left = np.array([ordered[low] for low in lows], float)
        right = np.array([ordered[min(low + 1, len(ordered) - 1)] for low in lows], float)
        bounds[index] = left + (ranks - lows) * (right - left)
    return bounds


def ratio_at(coverage: float, bounds: NDArray[np.float64], truths: NDArray[np.float64]) -> float:
    """A baseline's ratio at a coverage, interpolated between its levels."""
    qualities = [quality(column, truths) for column in bounds.T]
    coverages = np.maximum.accumulate([each.coverage for each in qualities])
    return float(np.interp(coverage, coverages, [each.ratio for each in qualities]))


def compare(name: str, split: Split) -> tuple[dict[str, float], FittedLengths]:
    """All figures of one data set, and the fitted model."""
    train, test = split
    say(f"{name}: fitting {len(train)} calls")
    began_s = time.perf_counter()
    model = fit(train, seed=0)
    figures = {"calls": len(test), "fit_s": time.perf_counter() - began_s}
    say(f"{name}: replaying {len(test)} calls")
    truths = np.array([sample.output_tokens for sample in test], float)
    sketches = our_sketches(train, test, model)
    ours = quality(np.array([sketch.tokens[BOUND_INDEX] for sketch in sketches]), truths)
    growing = refined(sketches, test)
    figures |= {"coverage": ours.coverage, "ratio": ours.ratio}
    figures |= {"refined_coverage": growing.coverage, "refined_ratio": growing.ratio}
    nominal_index = int(np.argmin(abs(LEVELS - BOUND_LEVEL)))
    for baseline, by_step in (("step", True), ("global", False)):
        bounds = baseline_bounds(train, test, by_step=by_step)
        nominal = quality(bounds[:, nominal_index], truths)
        figures[f"{baseline}_nominal_coverage"] = nominal.coverage
        figures[f"{baseline}_nominal_ratio"] = nominal.ratio
        figures[f"{baseline}_ratio"] = ratio_at(ours.coverage, bounds, truths)
    return {f"{name}_{key}": value for key, value in figures.items()}, model


def median_us(action: Callable[[Sample], object], samples: Sequence[Sample]) -> float:
    """Median microseconds of one call of an action."""
    times = []
    for sample in samples:
        began_ns = time.perf_counter_ns()
        action(sample)
        times.append(time.perf_counter_ns() - began_ns)
    return statistics.median(times) / 1000


def timings(model: FittedLengths, split: Split) -> dict[str, float]:
    """Times of one prediction, of one refinement, and of quantile-forest's own prediction."""
    say("timing predictions")
    train, test = split[0][-5000:], split[1][:1000]
    analyzer = RequestAnalyzer.replay(train, model)
    sketch = analyzer.estimate(test[0].features).sketch
    assert sketch is not None, "a fitted analyzer always has a sketch"
    vectors, tokens, _, _ = training_set(train)
    regressor = fit_regressor(vectors, tokens, seed=0)
    vector = vectors[:1]
    empty_history = StepHistory()
    predict_us = median_us(lambda sample: analyzer.estimate(sample.features), test)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths"
        model.save(path)
        model_bytes = path.stat().st_size
    return {
        "predict_ms": predict_us / 1000,
        "forest_us": median_us(
            lambda sample: model.forest.predict(sample.features.vector(empty_history)), test
        ),
        "refine_us": median_us(
            lambda sample: [
                sketch.upper(BOUND_LEVEL, generated=generated) for generated in range(0, 1000, 10)
            ],
            test,
        )
        / 100,
        "quantile_forest_ms": median_us(
            lambda sample: regressor.predict(vector, quantiles=[BOUND_LEVEL]), test[:50]
        )
        / 1000,
        "model_bytes": model_bytes,
        "model_calls": model.num_calls,
    }


def table(figures: dict[str, float], names: Sequence[str]) -> str:
    """The figures as a text table."""
    lines = [
        "Level 0.9: coverage and mean bound/truth; =: a rival's mean bound/truth at our coverage",
        f"{'':17}{'calls':>6}{'forest':>15}{'refined':>15}{'step':>24}{'global':>24}  tightest",
    ]
    for name in names:
        line = f"{name:17}{figures[f'{name}_calls']:6.0f}"
        line += f"{figures[f'{name}_coverage']:9.3f}{figures[f'{name}_ratio']:6.2f}"
        line += f"{figures[f'{name}_refined_coverage']:9.3f}{figures[f'{name}_refined_ratio']:6.2f}"
        ratios = {"forest": figures[f"{name}_ratio"]}
        for baseline in ("step", "global"):
            ratios[baseline] = figures[f"{name}_{baseline}_ratio"]
            line += f"{figures[f'{name}_{baseline}_nominal_coverage']:9.3f}"
            line += f"{figures[f'{name}_{baseline}_nominal_ratio']:6.2f} ={ratios[baseline]:6.2f} "
        lines.append(f"{line}  {min(ratios, key=lambda method: ratios[method])}")
    times = ("predict_ms", "forest_us", "refine_us", "quantile_forest_ms", "fit_s")
    lines += [f"{key:20}{figures[key]:10.3f}" for key in times]
    calls = f"({figures['model_calls']:.0f} calls)"
    lines.append(f"{'model_bytes':20}{figures['model_bytes']:10.0f} {calls}")
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print; raises BadData."""
    splits = {name: load(arguments.data, name) for name in arguments.only}
    figures: dict[str, float] = {}
    for name in reversed(arguments.only):
        own_figures, model = compare(name, splits[name])
        figures |= own_figures
    figures |= timings(model, splits[arguments.only[0]])
    figures["fit_s"] = figures[f"{arguments.only[0]}_fit_s"]
    print_result(figures, table(figures, arguments.only), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/ and agentic/")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    return exit_code(partial(run, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
