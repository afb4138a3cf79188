"""A suite's comparisons as tables for people. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from cli.render.bench_report import predictions_and_scale
from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE
from orchestrator.display.text_timeline import fitted
from serving.sim.compare.compare import Comparison, Goodputs
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.seeds import seeds_text
from serving.sim.compare.suite_report import (
    BASELINES,
    GOODPUTS,
    LEAST_RATIO,
    MOST_RATIO,
    Row,
    SuiteReport,
)

if TYPE_CHECKING:
    from rich.table import Table

_RIVALS = "best others"
_GAP = 1
_NAME_CELLS = 15
_STATISTICS = {"worst": "worst", "median": "median", "geometric_mean": "geo. mean"}


def title_of_suite(comparisons: Mapping[str, Comparison]) -> list[str]:
    """The lines above the tables: what was compared, and how."""
    plan = next(iter(comparisons.values())).plan
    config = plan.config
    spans = {name: _span(each.plan.config) for name, each in comparisons.items()}
    [(usual, _)] = Counter(spans.values()).most_common(1)
    unusual = ", ".join(f"{name} {span}" for name, span in spans.items() if span != usual)
    workloads = "1 workload" if len(comparisons) == 1 else f"{len(comparisons)} workloads"
    return [
        f"suite of {workloads}, simulated in virtual time: {usual} of warm-up",
        *([f"but {unusual}"] if unusual else []),
        f"{seeds_text(plan.seeds)}, {predictions_and_scale(config)}",
        f"machine {config.machine.step_cost.name}",
    ]


def _span(config: ExperimentConfig) -> str:
    return f"{config.window_s:g} s after {config.warmup_s:g} s"


def ratio_table(report: SuiteReport, load: float, *, width: int, ascii_only: bool = False) -> Table:
    """The reference policy at one load: on each workload, and over the suite."""
    glyphs = ASCII if ascii_only else UNICODE
    marks = {
        "to_best_rival": f"{glyphs.times}best",
        "to_fcfs": f"{glyphs.times}fcfs",
        "of_bound": "bound",
    }
    shown = [name for name in BASELINES if any(getattr(row, name) for row in report.rows)]
    headings = ["workload"]
    for unit in ("tokens/s", "reqs/s"):
        headings += [unit, *(marks[name] for name in shown)]
    rows = [[Text(row.workload), *_row_cells(row, shown)] for row in report.rows_at(load)]
    rows += [
        [Text(label, style="bold"), *_statistic_cells(report, load, statistic, shown)]
        for statistic, label in _STATISTICS.items()
        if shown
    ]
    if "to_best_rival" in shown:
        room = _room(width, headings, rows)
        headings.append(_RIVALS)
        rivals = [", ".join(dict.fromkeys(row.best_rivals)) for row in report.rows_at(load)]
        rivals += [""] * len(_STATISTICS)
        for cells, names in zip(rows, rivals, strict=True):
            cells.append(Text(fitted(names, room, glyphs), style="dim"))
    texts = ("workload", _RIVALS)
    return named_table(headings, rows, width=width, gap=_GAP, texts=texts, glyphs=glyphs)


def goodput_tables(
    report: SuiteReport, load: float, *, width: int, ascii_only: bool = False
) -> Iterator[Table]:
    """Tokens / requests per second of every policy at one load; several tables if it is narrow."""
    glyphs = ASCII if ascii_only else UNICODE
    columns: dict[str, list[Text]] = {
        policy: [_both(report.goodputs[name, load, policy]) for name in report.workloads]
        for policy in report.policies
    }
    if report.bounds:
        columns["upper bound"] = [
            _both(report.bounds[name, load], style="dim") for name in report.workloads
        ]
    for names in _that_fit(columns, width):
        rows = [
            [Text(workload), *(columns[name][at] for name in names)]
            for at, workload in enumerate(report.workloads)
        ]
        headings = ["workload", *names]
        yield named_table(headings, rows, width=width, gap=_GAP, texts=("workload",), glyphs=glyphs)


def summary_table(report: SuiteReport, *, width: int, ascii_only: bool = False) -> Table | None:
    """Over the suite, by load and over all loads: ratios to the best of the other policies."""
    glyphs = ASCII if ascii_only else UNICODE
    headings = ["load"]
    for goodput in ("tok", "req", "both"):
        headings += [f"{goodput} worst", "med.", "geo."]
    headings.append("worst at")
    rows = []
    for load in [*report.loads, None]:
        cells = [Text("all" if load is None else f"{load:g}x")]
        for goodput in GOODPUTS:
            summary = report.summary("to_best_rival", goodput, load)
            if summary is None:
                return None
            cells += [Text(_ratio(getattr(summary, statistic))) for statistic in _STATISTICS]
        worst = report.summary("to_best_rival", "mean", load)
        assert worst is not None, "there are ratios"
        rows.append([*cells, Text(worst.worst_workload, style="dim")])
    texts = ("load", "worst at")
    return named_table(headings, rows, width=width, gap=_GAP, texts=texts, glyphs=glyphs)


def legend_of_suite(report: SuiteReport, *, ascii_only: bool = False) -> list[str]:
    """The lines below the tables: the meaning of their columns."""
    times = (ASCII if ascii_only else UNICODE).times
    lines = [
        "Simulated. tokens/s and reqs/s are goodput: only what met its SLO. Means over the seeds.",
        f"The first table of a load is about {report.reference}. {times}best: its goodput over "
        f"the best of the other policies in that goodput ({_RIVALS}: by tokens, by requests if "
        f"another); {times}fcfs: over that of fcfs; bound: share of the upper bound, which no "
        "scheduler could exceed. Below it, tokens/s / reqs/s of every policy.",
        "The last table: ratios to the best others. both: the mean of a workload's two ratios. "
        "worst, med., geo.: the least, the median and the geometric mean over the suite; all: "
        "over workloads and loads.",
        f"0 / 0 is 1, and x / 0 is inf. In geometric means a ratio counts as at least "
        f"{LEAST_RATIO:g} and at most {MOST_RATIO:g}.",
    ]
    num_cut = _num_cut(report)
    if num_cut:
        lines.append(f"{num_cut} of the ratios to the best others were cut so.")
    return lines


def _num_cut(report: SuiteReport) -> int:
    summaries = [report.summary("to_best_rival", each, None) for each in ("tokens", "requests")]
    return sum(each.num_cut for each in summaries if each is not None)


def _row_cells(row: Row, shown: Sequence[str]) -> Iterator[Text]:
    for goodput, decimals in (("tokens", 0), ("requests", 2)):
        yield Text(f"{getattr(row.goodputs, goodput):,.{decimals}f}")
        for name in shown:
            ratios = getattr(row, name)
            yield Text(_cell(name, getattr(ratios, goodput)) if ratios else "")


def _statistic_cells(
    report: SuiteReport, load: float, statistic: str, shown: Sequence[str]
) -> Iterator[Text]:
    for goodput in ("tokens", "requests"):
        yield Text()
        for name in shown:
            summary = report.summary(name, goodput, load)
            cell = "" if summary is None else _cell(name, getattr(summary, statistic))
            yield Text(cell, style="bold")


def _cell(baseline: str, value: float) -> str:
    return f"{value:.0%}" if baseline == "of_bound" else _ratio(value)


def _ratio(value: float) -> str:
    if value == math.inf:
        return "inf"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def _both(goodputs: Goodputs, *, style: str = "") -> Text:
    return Text(f"{goodputs.tokens:,.0f}/{goodputs.requests:.2f}", style=style)


def _room(width: int, headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> int:
    """Cells that a further column may have."""
    sizes = [
        max(len(heading), *(len(row[at]) for row in rows)) for at, heading in enumerate(headings)
    ]
    return max(width - sum(sizes) - _GAP * (len(sizes) + 1), len(_RIVALS))


def _that_fit(columns: Mapping[str, Sequence[Text]], width: int) -> Iterator[list[str]]:
    """The columns in groups, each as many as fit beside the workloads' names; at least one."""
    group: list[str] = []
    room = width - _NAME_CELLS - _GAP
    for name, cells in columns.items():
        size = max(len(name), *(len(cell) for cell in cells)) + _GAP
        if group and size > room:
            yield group
            group, room = [], width - _NAME_CELLS - _GAP
        group.append(name)
        room -= size
    yield group
