"""`orchestrate cancel`: cancel a run, whichever process executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from orchestrator.settings import Settings

EPILOG = (
    "Example: orchestrate cancel 3f2a\n\n"
    "The run's process sees that within a second or so, also on another machine, and cancels the "
    "flow. A run whose process is gone is recorded as cancelled. Either can be resumed."
)

WAIT_S = 30.0
"""How long the command waits until the run has ended."""


def cancel(
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    store: options.Store = None,
) -> None:
    """Cancel a run, in whichever process it is executed."""
    import asyncio

    from cli.terminal.output import say
    from orchestrator.settings import read_settings

    say(asyncio.run(_cancel(read_settings(store=store), run)))


async def _cancel(settings: Settings, prefix: str) -> str:
    """Cancel a run, and wait until it has ended; what to print.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        RunAlreadyEnded: it had ended before.
    """
    import asyncio

    from cli.reading.store_reader import existing_store
    from orchestrator.runtime.run_control import RunControl
    from store.errors import RunNotFound

    store = await existing_store(settings.store)
    if store is None:
        raise RunNotFound(prefix)
    async with store:
        async with store.reading() as tx:
            run_id = (await tx.runs.find(prefix)).id
        try:
            async with asyncio.timeout(WAIT_S):
                ended = await RunControl(store).cancel(run_id)
        except TimeoutError:
            return (
                f"run {run_id} is to be cancelled, but its process has not ended it yet: "
                f"orchestrate watch {run_id}"
            )
    if ended.status == "cancelled":
        return f"run {run_id} is cancelled; to continue it: orchestrate resume {run_id}"
    return f"run {run_id} ended before it was cancelled: it is {ended.status}"
