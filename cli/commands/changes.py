"""`orchestrate diff` and `orchestrate changeset`: what a run changed in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.errors import BadInput
from cli.terminal.output import print_json, print_line, print_patch, say, stdout_console

if TYPE_CHECKING:
    from cli.reading.state_diffs import FileDiff, StateDiff

DIFF_EPILOG = (
    "Example: orchestrate diff 3f2a\n\n"
    "Since a checkpoint: orchestrate diff 3f2a@start 3f2a\n\n"
    "As a patch: orchestrate diff 3f2a > changes.patch; git apply changes.patch\n\n"
    "Only paths: orchestrate diff 3f2a --json | jq -r '.changes[].path'"
)
CHANGESET_EPILOG = (
    "Example: orchestrate changeset 3f2a\n\n"
    "As a patch: orchestrate changeset 3f2a --output changes.patch\n\n"
    "To write the changes to the folder: orchestrate apply 3f2a"
)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=options.STATE)],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            help="Another one: what leads from A to B. Default: what leads from the folder to A.",
        ),
    ] = None,
    stat: Annotated[
        bool, typer.Option("--stat", help="Only the paths, with the number of changed lines.")
    ] = False,
    workspace: options.WorkspaceName = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show what differs between two states of a run's files, or from its folder, as a diff."""
    if stat and json:
        raise BadInput("--stat and --json are two forms of the same output: give one of them")
    found = _difference([a] if b is None else [a, b], workspace, store)
    if json:
        from cli.render.state_diff import diff_document

        print_json(diff_document(found, list(found.files())))
    elif stat:
        _print_stat(list(found.files()))
    else:
        _print_diff(found.files())


def changeset(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help=options.STATE)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the diff to a file; with --json, the document.",
            rich_help_panel=options.RECORDS,
        ),
    ] = None,
    workspace: options.WorkspaceName = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show what a run changed in its folder: paths, counts and a diff."""
    from cli.render.state_diff import diff_document

    found = _difference([run], workspace, store)
    files = list(found.files())
    if not json:
        _print_stat(files)
        if output is None:
            stdout_console().print()
            _print_diff(files)
    elif output is None:
        print_json(diff_document(found, files))
    if output is not None:
        _save(output, found, files, json=json)


def _difference(texts: list[str], workspace: str | None, store: str | None) -> StateDiff:
    """What leads from one state to the other, or from the folder to the only one."""
    from cli.reading.state_diffs import diff_between
    from cli.work.stored_states import find_states, warn_of_changes
    from orchestrator.settings import read_settings

    named, home = find_states(read_settings(store=store), texts, workspace)
    found = diff_between(home, named[0].state if len(named) > 1 else None, named[-1].state)
    warn_of_changes(home, *([] if found.before is None else [found.before]), found.after)
    return found


def _print_diff(files: Iterable[FileDiff]) -> None:
    from cli.render.state_diff import coloured

    console = stdout_console()
    for file in files:
        if not console.is_terminal:
            print_patch(file.text)
            continue
        for line in coloured(file.text):
            print_line(console, line)


def _print_stat(files: Sequence[FileDiff]) -> None:
    from cli.render.state_diff import stat_lines

    console = stdout_console()
    for line in stat_lines(files):
        print_line(console, line)


def _save(place: Path, found: StateDiff, files: Sequence[FileDiff], *, json: bool) -> None:
    from cli.render.state_diff import diff_document
    from cli.terminal.atomic_write import save
    from cli.terminal.output import json_text

    document = json_text(diff_document(found, files)) if json else "".join(f.text for f in files)
    save(place, document)
    say(f"written to {place}")
