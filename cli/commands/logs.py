"""`orchestrate logs`: what happened in a run, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import print_json, print_line, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.reading.history import History

EPILOG = (
    "Example: orchestrate logs 3f2a\n\n"
    "As it goes on, in another process: orchestrate logs --follow\n\n"
    "What failed: orchestrate logs 3f2a --json | jq 'select(.status == \"failed\")'"
)


def logs(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or how it begins. Default: the newest run."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended, or Ctrl-C.")
    ] = False,
    store: options.Store = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object a line on stdout.",
            rich_help_panel=options.RECORDS,
        ),
    ] = False,
) -> None:
    """Tell what happened in a run, in order of time."""
    from cli.reading import following
    from cli.terminal.signals import run_until_dismissed
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    run_until_dismissed(following.follow(url, run, teller(as_json=json), once=not follow))


def teller(*, as_json: bool = False) -> Callable[[History], None]:
    """What prints the happenings of a run, each of them once, however often it is told of it."""
    from cli.render.event_line import not_yet_told
    from cli.render.event_log import happenings

    console = results()
    known: set[tuple[object, ...]] = set()

    def tell(history: History) -> None:
        for happening in not_yet_told(happenings(history), known):
            if as_json:
                print_json(happening.document, on_one_line=True)
            else:
                print_line(console, happening.line)

    return tell
