"""`orchestrate checkpoints`: the states of a run's workspaces, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.errors import BadInput
from cli.terminal.output import (
    is_plain_ascii,
    print_json,
    print_line,
    print_text,
    say,
    stdout_console,
    width_of,
)

if TYPE_CHECKING:
    from orchestrator.environment.states.past_states import PastStates

EPILOG = (
    "Example: orchestrate checkpoints 3f2a\n\n"
    "As a picture: orchestrate checkpoints 3f2a --dot | dot -Tsvg > states.svg\n\n"
    "Paths that changed: orchestrate checkpoints 3f2a --json | jq -r '.edges[].changed[]'"
)


def checkpoints(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or the beginning of it. Default: the newest run."),
    ] = None,
    dot: Annotated[
        bool,
        typer.Option(
            "--dot", help="Print the graph for Graphviz.", rich_help_panel=options.RECORDS
        ),
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Draw how a run's actions changed its files and shell: states, branches, checkpoints.

    Each line is a state, with the step that led to it. The states are those that the run's
    workspaces had; a branch is a fork, or what was done after a rewind.
    """
    import asyncio

    from cli.reading.store_reader import past_states_of
    from orchestrator.settings import read_settings

    if dot and json:
        raise BadInput("--dot and --json are two forms of the same output: give one of them")
    past, status = asyncio.run(past_states_of(read_settings(store=store).store, run))
    if json:
        from cli.render.state_documents import state_document

        print_json(state_document(past, status))
    elif dot:
        from cli.render.state_documents import state_dot

        print_text(state_dot(past))
    else:
        _draw(past, status)
    if (json or dot) and not past.graph():
        say(f"run {past.run.id}: no workspace, so no states")


def _draw(past: PastStates, status: str) -> None:
    from cli.render.state_log import state_log

    console = stdout_console()
    for line in state_log(past, status, ascii_only=is_plain_ascii(console)):
        if console.is_terminal:  # a line that is wrapped would tear the branches apart
            line.truncate(width_of(console), overflow="ellipsis")
        print_line(console, line)
