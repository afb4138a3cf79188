"""`orchestrate bench --suite`: all workloads of the suite, and a report over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.sim.compare.compare import Comparison, Plan

_NARROWEST = 90


def bench_suite(
    plan: Plan, names: Sequence[str], *, jobs: int | None, use_cache: bool, as_json: bool
) -> None:
    """Run the named entries of the suite and print their report.

    Args:
        plan: as `suite_plans` takes it.
        names: of SUITE.
        jobs, use_cache: as `run_suite` takes them.
    """
    from cli.render.bench_report import empty_windows
    from cli.terminal.output import warn
    from cli.work.bench_session import run_suite
    from serving.sim.compare.suite import suite_plans

    comparisons = run_suite(suite_plans(plan, names), jobs=jobs, use_cache=use_cache)
    for name, comparison in comparisons.items():
        for message in empty_windows(comparison):
            warn(f"{name} {message}")
    if as_json:
        _print_document(comparisons)
    else:
        _print_tables(comparisons)


def _print_document(comparisons: Mapping[str, Comparison]) -> None:
    from cli.render.suite_document import document_of_suite
    from cli.terminal.output import print_json
    from serving.sim.compare.suite_report import report_of

    print_json(document_of_suite(comparisons, report_of(comparisons)))


def _print_tables(comparisons: Mapping[str, Comparison]) -> None:
    from rich.text import Text

    from cli.render import suite_report as render
    from cli.terminal.output import is_plain_ascii, print_line, stdout_console, width_of
    from serving.sim.compare.suite_report import report_of

    report = report_of(comparisons)
    console = stdout_console()
    width, ascii_only = width_of(console, narrowest=_NARROWEST), is_plain_ascii(console)
    first, *others = render.title_of_suite(comparisons)
    print_line(console, Text(first, style="bold"))
    for line in others:
        print_line(console, Text(line, style="dim"))
    for load in report.loads:
        console.print()
        print_line(console, Text(f"load {load:g}x: {report.reference}", style="bold"))
        ratios = render.ratio_table(report, load, width=width, ascii_only=ascii_only)
        console.print(ratios, width=width)
        for table in render.goodput_tables(report, load, width=width, ascii_only=ascii_only):
            console.print()
            console.print(table, width=width)
    summary = render.summary_table(report, width=width, ascii_only=ascii_only)
    if summary is not None:
        console.print()
        print_line(console, Text("over the suite: ratios to the best others", style="bold"))
        console.print(summary, width=width)
    console.print()
    for line in render.legend_of_suite(report, ascii_only=ascii_only):
        print_line(console, Text(line, style="dim"))
