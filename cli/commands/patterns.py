"""`orchestrate patterns`: what past runs taught, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import is_plain_ascii, print_json, print_line, results, say, width_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import datetime
    from typing import TypeVar

    from rich.console import Console
    from rich.text import Text

    from cli.reading.history import History
    from cli.reading.learned import Learned
    from cli.work.fit_session import Fitted

    T = TypeVar("T")

_NARROWEST = 40

app = typer.Typer(
    help="See and fit what past runs taught.",
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
    """List the applications, the patterns kept of each, and what is learned from them."""
    from cli.reading.learned import NO_RUNS, learned_of_all
    from cli.render.applications import (
        applications_document,
        applications_table,
        below_applications,
    )
    from orchestrator.settings import read_settings

    found = _read(learned_of_all(read_settings(store=store).store))
    if json:
        print_json({"applications": applications_document(found)})
    elif not found:
        say(NO_RUNS)
    else:
        console = results()
        width = width_of(console, narrowest=_NARROWEST)
        ascii_only = is_plain_ascii(console)
        now = _now()
        table = applications_table(found, now=now, width=width, ascii_only=ascii_only)
        console.print(table, width=width)
        _print_lines(console, below_applications(found, now=now, width=width))


@app.command(epilog="Example: orchestrate patterns show deep-research --limit 10")
def show(
    application: Annotated[
        str, typer.Argument(help="A flow's name, as `patterns list` has it.", show_default=False)
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Most patterns to draw.")] = 20,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show an application's library: past runs by where their time went, and their answers."""
    from cli.reading.learned import learned_of
    from cli.render.lengths import step_lengths, steps_document
    from cli.render.library import library_document
    from orchestrator.settings import read_settings

    learned = _read(learned_of(read_settings(store=store).store, application))
    if json:
        document = library_document(learned, now=_now())
        print_json(document | {"steps": steps_document(step_lengths(learned.samples))})
    else:
        _draw_library(learned, limit=limit)


@app.command(epilog="Example: orchestrate patterns fit deep-research --by-silhouette")
def fit(
    applications: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="APPLICATION",
            help="Flows' names. Default: all that have patterns.",
            show_default=False,
        ),
    ] = None,
    by_silhouette: Annotated[
        bool,
        typer.Option(
            "--by-silhouette", help="Keep fewer patterns, where they fall into so few groups."
        ),
    ] = False,
    budget_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Most bytes of an application's library. Default: 16384."
        ),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Learn anew from all patterns kept; what is learned now serves the runs that begin later."""
    from cli.reading.learned import NO_RUNS
    from cli.work.fit_session import check_none_left_out, fit_all, fitted_document
    from orchestrator.settings import read_settings

    settings = read_settings(store=store)
    done: list[Fitted] = []

    def on_fitted(fitted: Fitted) -> None:
        done.append(fitted)
        if not json:
            _print_fitted(fitted)

    left_out = fit_all(
        settings.store,
        applications or [],
        budget_bytes=budget_bytes,
        by_silhouette=by_silhouette,
        on_fitted=on_fitted,
        verbose=settings.verbose,
    )
    if json:
        print_json({"fits": [fitted_document(one) for one in done], "left_out": left_out})
    elif not done and not left_out:
        say(NO_RUNS)
    check_none_left_out(left_out)


@app.command(epilog="Example: orchestrate patterns explain 3f2a")
def explain(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or how it begins. Default: the newest run."),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Explain a run's sub-deadlines: which past runs decided them, and how it went."""
    from cli.reading.store_reader import history_of
    from cli.render.deadline_plan import plan_document
    from orchestrator.settings import read_settings

    history = _read(history_of(read_settings(store=store).store, run))
    if json:
        from cli.render.describe import run_document

        document = {"run": run_document(history.run, history.status, now=_now())}
        print_json(document | plan_document(history))
    else:
        _draw_plan(history)


def _draw_library(learned: Learned, *, limit: int) -> None:
    from rich.text import Text

    from cli.render.kernels import kernel_in_words
    from cli.render.lengths import step_lengths, steps_table
    from cli.render.library import overview, picture

    console, now = results(), _now()
    width = width_of(console, narrowest=_NARROWEST)
    ascii_only = is_plain_ascii(console)
    _print_lines(console, overview(learned, now=now, ascii_only=ascii_only))
    kernel = kernel_in_words(learned.kernel, is_fitted=learned.fit is not None)
    _print_lines(console, [Text(f"kernel: {kernel}")])
    console.print()
    drawn = picture(learned, now=now, width=width, limit=limit, ascii_only=ascii_only)
    _print_lines(console, drawn)
    if learned.samples:
        console.print()
        steps = step_lengths(learned.samples)
        console.print(steps_table(steps, width=width, ascii_only=ascii_only), width=width)
        told = "output tokens; held: answers within their bound at level 0.9, where they had one"
        _print_lines(console, [Text(told, style="dim")])


def _draw_plan(history: History) -> None:
    from cli.render.deadline_plan import explanation
    from cli.render.describe import elapsed_s, header
    from cli.render.lengths import calls_table, predicted, promise_line

    console, now = results(), _now()
    width = width_of(console, narrowest=_NARROWEST)
    ascii_only = is_plain_ascii(console)
    title = header(history, now=now, ascii_only=ascii_only)[:2]
    _print_lines(console, title)
    console.print()
    now_s = elapsed_s(history.run, history.status, now)
    _print_lines(console, explanation(history, width=width, ascii_only=ascii_only, now_s=now_s))
    calls = predicted(history.calls)
    if calls:
        console.print()
        table = calls_table(history.run, calls, width=width, ascii_only=ascii_only)
        console.print(table, width=width)
        _print_lines(console, [promise_line(calls)])


def _print_fitted(fitted: Fitted) -> None:
    from cli.work.fit_session import outcome

    console = results()
    _print_lines(console, outcome(fitted, ascii_only=is_plain_ascii(console)))


def _print_lines(console: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        print_line(console, line)


def _read(work: Awaitable[T]) -> T:
    """Read from a store, with what cannot be read told as a warning."""
    import asyncio

    from cli.terminal.warnings import log_as_warnings

    async def read() -> T:
        async with log_as_warnings():
            return await work

    return asyncio.run(read())


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)
