"""A comparison as one figure: goodput over load, SLO attainment, latency distributions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.sim.compare.compare import Comparison, label_of
from serving.sim.compare.seeds import seeds_text
from serving.sim.metrics.outcome import LEVELS, Outcome
from serving.slo import SloKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart, then further ones.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C564B",
    "#7F7F7F",
    "#B2A800",
    "#5D3A9B",
    "#1A1A1A",
    "#A6D854",
)
_MARKERS = "osD^vP*Xd<>h"
_KINDS = (SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND)
_DPI = 130
_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw(comparison: Comparison, path: Path) -> None:
    """Write the figure in the format of the path's suffix; the same comparison, the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 11.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(h_pad=0.09, w_pad=0.08)  # type: ignore[union-attr,call-arg]
    rows = figure.subfigures(3, 1, squeeze=False, height_ratios=(1.15, 1.0, 1.0))
    goodputs, kinds, latencies = rows[:, 0]
    figure.suptitle(_title(comparison), fontsize=13, fontweight="bold")
    for axes, index, unit in zip(
        goodputs.subplots(1, 2), (0, 1), ("tokens/s", "programs/s"), strict=True
    ):
        _goodput(axes, comparison, index, unit)
    attainments = kinds.subplots(1, len(_KINDS), sharey=True)
    for axes, kind in zip(attainments, _KINDS, strict=True):
        _attainment(axes, comparison, kind)
    attainments[0].set_ylabel("share that met its SLO")
    load = comparison.plan.loads[-1]
    names = ("ttft_s", "tbt_s", "e2el_s")
    distributions = latencies.subplots(1, len(names), sharey=True)
    for axes, name in zip(distributions, names, strict=True):
        _distribution(axes, comparison, load, name)
    distributions[0].set_ylabel("cumulative share")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=10)
    with mpl.rc_context({"svg.hashsalt": "orchestrate"}):
        figure.savefig(path, dpi=_DPI, metadata=_NO_DATE.get(path.suffix.lower()))


def _title(comparison: Comparison) -> str:
    plan, config = comparison.plan, comparison.plan.config
    how = "simulated" if plan.live is None else "measured"
    return (
        f"{config.source.name}, {how}: window {config.window_s:g} s after "
        f"{config.warmup_s:g} s, {seeds_text(plan.seeds)}; 1.0x = "
        f"{comparison.capacity_programs_s:.2f} programs/s\n"
        f"{config.machine.step_cost.name}"
    )


def _style(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": ("-", "--")[index // len(_COLOURS) % 2],
    }


def _labels(comparison: Comparison) -> list[str]:
    return [label_of(policy) for policy in comparison.plan.policies]


def _goodput(axes: Axes, comparison: Comparison, index: int, unit: str) -> None:
    loads = comparison.plan.loads
    for place, label in enumerate(_labels(comparison)):
        values = [[each[index] for each in comparison.goodputs(label, load)] for load in loads]
        means = [statistics.fmean(each) for each in values]
        axes.plot(loads, means, label=label, linewidth=1.8, markersize=6, **_style(place))
        if len(comparison.plan.seeds) > 1:
            lows, highs = [min(each) for each in values], [max(each) for each in values]
            axes.fill_between(loads, lows, highs, color=_style(place)["color"], alpha=0.12)
    if comparison.bounds:
        bound = [
            statistics.fmean(each[index] for each in comparison.bounds_at(load)) for load in loads
        ]
        name = comparison.bound_name
        axes.plot(loads, bound, label=name, color="black", linestyle=":", linewidth=1.8)
    axes.set_title(("token goodput", "request goodput")[index])
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    _over_loads(axes, loads)


def _attainment(axes: Axes, comparison: Comparison, kind: SloKind) -> None:
    loads = comparison.plan.loads
    has_values = False
    for place, label in enumerate(_labels(comparison)):
        shares = [_mean_attainment(comparison.of(label, load), kind) for load in loads]
        points = [
            (load, share) for load, share in zip(loads, shares, strict=True) if share is not None
        ]
        if points:
            has_values = True
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, linewidth=1.5, markersize=5, **_style(place))
    axes.set_title(f"{kind.value} programs")
    axes.set_ylim(-0.03, 1.03)
    _over_loads(axes, loads)
    if not has_values:
        _no_values(axes, "none in this workload")


def _distribution(axes: Axes, comparison: Comparison, load: float, name: str) -> None:
    """TTFT and TBT of latency programs, or of all calls if there are none; E2EL of programs."""
    streams = f"{name.removesuffix('_s')}_latency_s"
    population = "programs that ended"
    if name != "e2el_s":
        has_streams = any(each.curves[streams] for each in comparison.outcomes.values())
        name, population = (streams, "latency programs") if has_streams else (name, "all calls")
    has_values = False
    for place, label in enumerate(_labels(comparison)):
        curve = _mean_curve(comparison.of(label, load), name)
        if curve:
            has_values = True
            axes.plot(
                [max(value, 1e-4) for value in curve],
                [level / 100 for level in LEVELS],
                color=_style(place)["color"],
                linestyle=_style(place)["linestyle"],
                linewidth=1.6,
            )
    quantity = name.removesuffix("_s").removesuffix("_latency").upper()
    axes.set_title(f"{quantity} of {population} at {load:g}x")
    axes.set_xlabel("seconds, logarithmic")
    axes.grid(alpha=0.25)
    if has_values:
        _logarithmic(axes)
    else:
        _no_values(axes, "nothing was observed")


def _over_loads(axes: Axes, loads: Sequence[float]) -> None:
    axes.set_xlabel("load, as a multiple of the rate that fcfs drains (simulated)")
    axes.set_xticks(loads, [f"{load:g}x" for load in loads])
    axes.grid(alpha=0.25)


def _logarithmic(axes: Axes) -> None:
    """A logarithmic axis with plain numbers: more ticks a decade, the fewer decades it spans."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    steps = (
        (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.2 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    )
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _no_values(axes: Axes, reason: str) -> None:
    axes.set_xticks([])
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color="gray")


def _mean_attainment(outcomes: Sequence[Outcome], kind: SloKind) -> float | None:
    return _mean(outcomes, lambda each: each.report["attainment"][kind.value])


def _mean(outcomes: Sequence[Outcome], of: Callable[[Outcome], float | None]) -> float | None:
    values = [value for value in map(of, outcomes) if value is not None]
    return statistics.fmean(values) if values else None


def _mean_curve(outcomes: Sequence[Outcome], name: str) -> list[float]:
    """The mean of each percentile over the seeds with any observation."""
    curves = [each.curves[name] for each in outcomes if each.curves[name]]
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]
