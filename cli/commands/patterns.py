"""`orchestrate patterns`: show and fit what is learned from past runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import (
    is_plain_ascii,
    print_json,
    print_line,
    say,
    stdout_console,
    width_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from typing import TypeVar

    from rich.console import Console
    from rich.text import Text

    from cli.reading.history import History
    from cli.reading.learned import LearnedData
    from cli.work.fit_session import Fitted

    T = TypeVar("T")

_NARROWEST = 40

app = typer.Typer(
    help="Show and fit what is learned from past runs.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    epilog="Example: orchestrate patterns explain 3f2a",
)


@app.callback()
def _list_commands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Example: orchestrate patterns list --json")
def list_(store: options.Store = None, json: options.Json = False) -> None:
    """List the applications with their patterns, fits and sources of length bounds."""
    from cli.reading.learned import NO_RUNS, read_all_learned
    from cli.render.applications import (
        applications_document,
        applications_table,
        below_applications,
    )
    from orchestrator.settings import read_settings

    applications = _read(read_all_learned(read_settings(store=store).store))
    if json:
        print_json({"applications": applications_document(applications)})
    elif not applications:
        say(NO_RUNS)
    else:
        console = stdout_console()
        width = width_of(console, narrowest=_NARROWEST)
        ascii_only = is_plain_ascii(console)
        now = datetime.now(UTC)
        table = applications_table(applications, now=now, width=width, ascii_only=ascii_only)
        console.print(table, width=width)
        _print_lines(console, below_applications(applications, now=now, width=width))


@app.command(epilog="Example: orchestrate patterns show deep-research --limit 10")
def show(
    application: Annotated[
        str, typer.Argument(help="A flow's name, from `patterns list`.", show_default=False)
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of patterns to draw.")
    ] = 20,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show an application's past runs: their time per stage, and their answer lengths."""
    from cli.reading.learned import read_learned
    from cli.render.lengths import step_lengths, steps_document
    from cli.render.library import library_document
    from orchestrator.settings import read_settings

    learned = _read(read_learned(read_settings(store=store).store, application))
    if json:
        document = library_document(learned, now=datetime.now(UTC))
        print_json(document | {"steps": steps_document(step_lengths(learned.samples))})
    else:
        _draw_library(learned, limit=limit)


@app.command(epilog="Example: orchestrate patterns fit deep-research --by-silhouette")
def fit(
    applications: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="APPLICATION",
            help="Flow names. Default: all flows with patterns.",
            show_default=False,
        ),
    ] = None,
    by_silhouette: Annotated[
        bool,
        typer.Option(
            "--by-silhouette", help="Keep fewer patterns if the runs form only a few clusters."
        ),
    ] = False,
    budget_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum bytes of an application's library. Default: 16384."
        ),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Learn again from all recorded patterns; runs that start afterwards use the result."""
    from cli.reading.learned import NO_RUNS
    from cli.work.fit_session import check_all_fitted, fit_all, fitted_document
    from orchestrator.settings import read_settings

    settings = read_settings(store=store)
    fits: list[Fitted] = []

    def on_fitted(fitted: Fitted) -> None:
        fits.append(fitted)
        if not json:
            _print_fitted(fitted)

    skipped = fit_all(
        settings.store,
        applications or [],
        budget_bytes=budget_bytes,
        by_silhouette=by_silhouette,
        on_fitted=on_fitted,
        verbose=settings.verbose,
    )
    if json:
        print_json({"fits": [fitted_document(fitted) for fitted in fits], "left_out": skipped})
    elif not fits and not skipped:
        say(NO_RUNS)
    check_all_fitted(skipped)


@app.command(epilog="Example: orchestrate patterns explain 3f2a")
def explain(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or the beginning of it. Default: the newest run."),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Explain a run's sub-deadlines: the past runs behind them, and how well it met them."""
    from cli.reading.store_reader import history_of
    from cli.render.deadline_plan import plan_document
    from orchestrator.settings import read_settings

    history = _read(history_of(read_settings(store=store).store, run))
    if json:
        from cli.render.describe import run_document

        document = {"run": run_document(history.run, history.status, now=datetime.now(UTC))}
        print_json(document | plan_document(history))
    else:
        _draw_plan(history)


def _draw_library(learned: LearnedData, *, limit: int) -> None:
    from rich.text import Text

    from cli.render.kernels import describe_kernel
    from cli.render.lengths import step_lengths, steps_table
    from cli.render.library import library_lines, summary_lines

    console, now = stdout_console(), datetime.now(UTC)
    width = width_of(console, narrowest=_NARROWEST)
    ascii_only = is_plain_ascii(console)
    _print_lines(console, summary_lines(learned, now=now, ascii_only=ascii_only))
    kernel = describe_kernel(learned.kernel, is_fitted=learned.fit is not None)
    _print_lines(console, [Text(f"kernel: {kernel}")])
    console.print()
    lines = library_lines(learned, now=now, width=width, limit=limit, ascii_only=ascii_only)
    _print_lines(console, lines)
    if learned.samples:
        console.print()
        steps = step_lengths(learned.samples)
        console.print(steps_table(steps, width=width, ascii_only=ascii_only), width=width)
        legend = "output tokens; held: share of answers within their length bound (level 0.9)"
        _print_lines(console, [Text(legend, style="dim")])


def _draw_plan(history: History) -> None:
    from cli.render.deadline_plan import explanation
    from cli.render.describe import elapsed_s, header
    from cli.render.lengths import bounds_line, calls_table, calls_with_source

    console, now = stdout_console(), datetime.now(UTC)
    width = width_of(console, narrowest=_NARROWEST)
    ascii_only = is_plain_ascii(console)
    title = header(history, now=now, ascii_only=ascii_only)[:2]
    _print_lines(console, title)
    console.print()
    now_s = elapsed_s(history.run, history.status, now)
    _print_lines(console, explanation(history, width=width, ascii_only=ascii_only, now_s=now_s))
    calls = calls_with_source(history.calls)
    if calls:
        console.print()
        table = calls_table(history.run, calls, width=width, ascii_only=ascii_only)
        console.print(table, width=width)
        _print_lines(console, [bounds_line(calls)])


def _print_fitted(fitted: Fitted) -> None:
    from cli.work.fit_session import fitted_lines

    console = stdout_console()
    _print_lines(console, fitted_lines(fitted, ascii_only=is_plain_ascii(console)))


def _print_lines(console: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        print_line(console, line)


def _read(work: Awaitable[T]) -> T:
    """Read from a store; unreadable records are reported as warnings."""
    import asyncio

    from cli.terminal.warnings import log_as_warnings

    async def read() -> T:
        async with log_as_warnings():
            return await work

    return asyncio.run(read())
