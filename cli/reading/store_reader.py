"""What a store holds, read for the commands that show it; none of them makes a store."""

from __future__ import annotations

from cli.errors import BadInput
from cli.reading.history import History
from orchestrator.durability.liveness import status_shown
from store.errors import RunNotFound
from store.session import Store, open_store
from store.urls import file_of, is_sqlite, normalised

NO_RUNS = "no runs are recorded yet: try `orchestrate run`"


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
    async with await store_with(url, prefix) as store:
        return await read_history(store, prefix)


async def store_with(url: str, prefix: str | None) -> Store:
    """The store that a run should be in.

    Raises:
        RunNotFound: there is no store, so not this run either.
        BadInput: the same, where any run would do.
    """
    store = await existing_store(url)
    if store is not None:
        return store
    if prefix:
        raise RunNotFound(prefix)
    raise BadInput(NO_RUNS)


async def read_history(store: Store, prefix: str | None, *, whole: bool = True) -> History:
    """The same as `history_of` of an open store.

    Args:
        whole: False: without what waited for what and the stages, for who reads it often.
    """
    async with store.reading() as tx:
        run = await (tx.runs.find(prefix) if prefix else tx.runs.latest())
        if run is None:
            raise BadInput(NO_RUNS)
        return History(
            run,
            status_shown(run),
            calls=await tx.calls.of_run(run.id),
            steps=await tx.journal.of_run(run.id),
            edges=await tx.calls.edges_of_run(run.id) if whole else (),
            stages=await tx.stages.of_run(run.id) if whole else (),
        )
