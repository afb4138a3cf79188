"""`orchestrate discard`: give up the files of a run, and keep its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from collections.abc import Collection

EPILOG = (
    "Example: orchestrate discard 3f2a\n\n"
    "The run can still be read, but its files can be neither shown nor applied, and it cannot be "
    "resumed in its workspaces; nor can what it applied be undone. States that other runs have too "
    "are kept. `orchestrate gc` then frees the disk."
)


def discard(
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    yes: options.Yes = False,
    store: options.Store = None,
) -> None:
    """Give up the files of a run's workspaces; its records are kept."""
    import asyncio

    from cli.terminal.confirming import confirm
    from cli.terminal.output import say, warn
    from cli.work.stored_states import open_environments
    from orchestrator.display.run_text import counted
    from orchestrator.environment.collection import discard as discard_states
    from orchestrator.settings import read_settings

    settings = read_settings(store=store)
    run_id, states = asyncio.run(_own_states(settings.store, run))
    if not states:
        say(f"run {run_id} has no state that no other run has: nothing to give up")
        return
    root = open_environments(settings).root
    number = counted(len(states), "state")
    confirm(f"Give up the files of run {run_id} in {number}?", is_given=yes)
    in_use = discard_states(root, states)
    if in_use:
        warn(f"{counted(len(in_use), 'state')} of them are open in a workspace, and are kept")
    given_up = counted(len(states) - len(in_use), "state")
    say(f"{given_up} of run {run_id} given up; to free the disk: orchestrate gc")


async def _own_states(url: str, prefix: str) -> tuple[str, Collection[str]]:
    """A run's id, and the states that only it has.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: it is still executed.
    """
    from cli.errors import BadInput
    from cli.reading.store_reader import store_with
    from orchestrator.durability.liveness import status_shown
    from store.records import Status

    async with await store_with(url, prefix) as store, store.reading() as tx:
        run = await tx.runs.find(prefix)
        if status_shown(run) == Status.RUNNING:
            raise BadInput(
                f"run {run.id} is still running: wait for its end, or `orchestrate cancel {run.id}`"
            )
        return run.id, await tx.states.only_of_run(run.id)
