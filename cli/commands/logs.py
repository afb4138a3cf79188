"""`orchestrate logs`: the events of a run, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import print_json, print_line, stdout_console

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.reading.history import History

EPILOG = (
    "Example: orchestrate logs 3f2a\n\n"
    "Follow a run of another process: orchestrate logs --follow\n\n"
    "Only failures: orchestrate logs 3f2a --json | jq 'select(.status == \"failed\")'"
)


def logs(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or the beginning of it. Default: the newest run."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the run ends, or Ctrl-C.")
    ] = False,
    store: options.Store = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per line on stdout.",
            rich_help_panel=options.RECORDS,
        ),
    ] = False,
) -> None:
    """Print the events of a run in order of time."""
    from cli.reading import following
    from cli.terminal.signals import run_until_dismissed
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    run_until_dismissed(following.follow(url, run, event_printer(as_json=json), once=not follow))


def event_printer(*, as_json: bool = False) -> Callable[[History], None]:
    """A function that prints those events of a run that it has not printed before."""
    from cli.render.event_line import take_new
    from cli.render.event_log import event_lines

    console = stdout_console()
    printed: set[tuple[object, ...]] = set()

    def print_events(history: History) -> None:
        for event in take_new(event_lines(history), printed):
            if as_json:
                print_json(event.document, on_one_line=True)
            else:
                print_line(console, event.line)

    return print_events
