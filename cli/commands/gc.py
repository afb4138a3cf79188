"""`orchestrate gc`: remove runs that ended long ago, and what only they used."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands import options

EPILOG = (
    "Example: orchestrate gc --keep 30d\n\n"
    "See first what would be removed: orchestrate gc --keep 7d --dry-run\n\n"
    "Keep the states of workspaces small: orchestrate gc --budget 5GB\n\n"
    "Check that what is kept can be read: orchestrate gc --verify\n\n"
    "Runs that are recorded as running are kept, orphaned ones included: resume them first. "
    "Learned patterns are kept. Other processes must wait for their writes meanwhile, so clean "
    "up a large store when it is little used."
)


def gc(
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TIME", help="Keep runs that ended within this time: 30d, 12h."
        ),
    ] = "30d",
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="Keep states of workspaces that nothing has needed for less than this time. What "
            "is newer than an hour is kept in any case.",
        ),
    ] = "1h",
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Disk for all states, such as 5GB: if they take more, what nothing needs is "
            "removed within the time of grace too. What a kept run needs stays.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Also read all contents of states, and count again what names each. The exit code "
            "is 1 if something is damaged.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be removed.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Remove runs that ended long ago with their files, and free their disk space."""
    from rich.text import Text

    from cli.errors import RemovalInterrupted
    from cli.terminal.output import print_json, print_line, say, stdout_console, warn
    from cli.terminal.signals import run_until_interrupted
    from cli.work import cleanup_report
    from cli.work.cleanup import Cleanup, clean_up
    from cli.work.run_removal import time_before_now
    from cli.work.sizes import bytes_of
    from cli.work.state_collection import StateRequest
    from orchestrator.durations import seconds_of
    from orchestrator.settings import read_settings

    keep_s = seconds_of(keep)
    request = StateRequest(
        seconds_of(grace), None if budget is None else bytes_of(budget), verify, dry_run
    )
    parts_removed: list[bool] = []
    outcome = run_until_interrupted(
        clean_up(
            read_settings(store=store),
            time_before_now(keep_s),
            request,
            on_removed=lambda: parts_removed.append(True),
        ),
        interrupted=lambda number: RemovalInterrupted(number, bool(parts_removed)),
    )
    done = outcome or Cleanup()
    for warning in cleanup_report.warnings_of(done, request):
        warn(warning)
    if json:
        print_json(cleanup_report.document_of(done, request, keep_s))
    elif outcome is None:
        say("no runs yet: nothing to remove")
    else:
        console = stdout_console()
        for line in cleanup_report.report_lines(done, request):
            print_line(console, Text(line))
    if not cleanup_report.is_whole(done):
        raise typer.Exit(1)
