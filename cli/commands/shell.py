"""`orchestrate shell`: look around in the files of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli.commands import options
from cli.errors import BadInput

EPILOG = (
    "Example: orchestrate shell 3f2a\n\n"
    "At a checkpoint: orchestrate shell 3f2a@start\n\n"
    "One command: orchestrate shell 3f2a --command 'pytest -q'\n\n"
    "It is a workspace of its own, which is thrown away: nothing that is done there changes the "
    "run or the folder. What the run's workspace hides from its programs is not hidden here."
)


def shell(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help=options.STATE)],
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="TEXT", help="Run this, without a terminal."),
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="Programs have the machine's network.")
    ] = False,
    workspace: options.WorkspaceName = None,
    store: options.Store = None,
) -> None:
    """Open a shell in a throw-away copy of a run's files; its exit code is the command's."""
    from cli.terminal.signals import run_until_dismissed
    from cli.work import looking_around
    from cli.work.stored_states import find_states, warn_of_changes
    from orchestrator.settings import read_settings

    if command is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("there is no terminal to open a shell on: give --command")
    (named,), home = find_states(read_settings(store=store), [run], workspace)
    state = home.states.get(named.state)
    warn_of_changes(home, state)
    codes: list[int] = []

    async def work() -> None:
        if command is None:
            codes.append(await looking_around.look_around(home, state, network=network))
        else:
            codes.append(await looking_around.run_command(home, state, command, network=network))

    run_until_dismissed(work())
    raise typer.Exit(codes[0])
