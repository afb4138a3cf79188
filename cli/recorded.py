"""What a store holds, read for the commands that show it; none of them makes a store."""

from __future__ import annotations

from cli.describe import History
from cli.errors import BadInput
from orchestrator.liveness import status_shown
from store.errors import RunNotFound
from store.session import Store, open_store
from store.urls import file_of, is_sqlite, normalised


async def existing_store(url: str) -> Store | None:
    """The store, if there is one: to look at runs is no reason to make a file."""
    address = normalised(url)
    if is_sqlite(address) and not file_of(address).exists():
        return None
    return await open_store(url)


async def history_of(url: str, prefix: str | None) -> History:
    """Everything about a run; the newest without a prefix of its id.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: there are no runs at all.
    """
    store = await existing_store(url)
    if store is None and prefix:
        raise RunNotFound(prefix)
    if store is not None:
        async with store, store.reading() as tx:
            run = await (tx.runs.find(prefix) if prefix else tx.runs.latest())
            if run is not None:
                return History(
                    run,
                    status_shown(run),
                    calls=await tx.calls.of_run(run.id),
                    steps=await tx.journal.of_run(run.id),
                    edges=await tx.calls.edges_of_run(run.id),
                    stages=await tx.stages.of_run(run.id),
                )
    raise BadInput("no runs are recorded yet: try `orchestrate run`")
