"""Reads runs from an existing store; never creates one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.errors import BadInput
from cli.reading.history import History
from orchestrator.durability.liveness import status_shown
from orchestrator.settings import default_store
from store.database.urls import file_of, is_sqlite, normalised, without_password
from store.errors import RunNotFound
from store.payload_codec import PayloadCodec
from store.records import RunRecord
from store.session import Store, open_store
from store.unit_of_work import Transaction

if TYPE_CHECKING:
    from orchestrator.environment.states.past_states import PastStates

NO_RUNS = "no runs are recorded yet: try `orchestrate run`"


async def existing_store(url: str, *, codec: PayloadCodec | None = None) -> Store | None:
    """Open the store, but create none: None if it is the default one and does not exist yet.

    Args:
        codec: encodes what is written.

    Raises:
        BadInput: the file of a store that the user named does not exist.
    """
    address = normalised(url)
    if not is_sqlite(address) or file_of(address).exists():
        return await open_store(url, codec=codec)
    if address == normalised(default_store()):
        return None
    raise BadInput(
        f"no store at {without_password(address)}: the file does not exist. Check --store and "
        "ORCHESTRATE_STORE; `orchestrate run` creates the file"
    )


async def history_of(url: str, prefix: str | None) -> History:
    """A run with all its records.

    Args:
        prefix: how the run's id begins; None: the newest run.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: there are no runs.
    """
    async with await store_with(url, prefix) as store:
        return await read_history(store, prefix)


async def store_with(url: str, prefix: str | None) -> Store:
    """Open the store in which to look for a run.

    Raises:
        RunNotFound: there is no default store yet, and `prefix` names a run.
        BadInput: the same, and `prefix` is None; or `existing_store` raises it.
    """
    store = await existing_store(url)
    if store is not None:
        return store
    if prefix:
        raise RunNotFound(prefix)
    raise BadInput(NO_RUNS)


async def read_history(store: Store, prefix: str | None, *, whole: bool = True) -> History:
    """`history_of` for an open store.

    Args:
        whole: False: leave out edges and stages, to read faster.
    """
    async with store.reading() as tx:
        run = await _run_of(tx, prefix)
        return History(
            run,
            status_shown(run),
            calls=await tx.calls.of_run(run.id),
            steps=await tx.journal.of_run(run.id),
            edges=await tx.calls.edges_of_run(run.id) if whole else (),
            stages=await tx.stages.of_run(run.id) if whole else (),
        )


async def past_states_of(url: str, prefix: str | None) -> tuple[PastStates, str]:
    """What a run did to its workspaces, and its status to show; arguments as in `history_of`.

    Raises:
        RunNotFound, RunAmbiguous, BadInput: as `history_of`.
    """
    from orchestrator.environment.states.past_states import read_past_states

    async with await store_with(url, prefix) as store, store.reading() as tx:
        run = await _run_of(tx, prefix)
        return await read_past_states(tx, run), status_shown(run)


async def _run_of(tx: Transaction, prefix: str | None) -> RunRecord:
    run = await (tx.runs.find(prefix) if prefix else tx.runs.latest())
    if run is None:
        raise BadInput(NO_RUNS)
    return run
