"""What `orchestrate gc` does: runs, payloads, states, and the file of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from cli.reading.store_reader import existing_store
from cli.terminal.output import warn
from cli.terminal.progress import Activity
from cli.work.run_removal import NOTHING, remove_runs
from cli.work.state_collection import StateCleanup, StateRequest, collect_states
from orchestrator.environment.states.location import environments_place
from orchestrator.settings import Settings
from store.database.sqlite_file import reclaim, stored_bytes
from store.errors import StoreFull, StoreLocked
from store.retention import Removal


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What was removed, or would be.

    Attributes:
        before, after: bytes of the store's file; None on a database server.
    """

    removal: Removal = NOTHING
    states: StateCleanup = field(default_factory=StateCleanup)
    before: int | None = None
    after: int | None = None


async def clean_up(
    settings: Settings,
    ended_before: datetime,
    request: StateRequest,
    *,
    on_removed: Callable[[], None],
) -> Cleanup | None:
    """Remove runs that ended before a moment, and what only they used; None without a store.

    Args:
        on_removed: called after each part that was removed.
    """
    url = settings.store
    before = stored_bytes(url)
    store = await existing_store(url)
    if store is None:
        return None
    with Activity("looking for payloads in use") as activity:
        async with store:
            removal = await remove_runs(
                store,
                ended_before,
                dry_run=request.dry_run,
                on_removed=on_removed,
                progress=activity.update,
            )
            states = await collect_states(
                store,
                environments_place(url, settings.environments),
                request,
                released=removal.unused_states,
                progress=activity.update,
            )
        if request.dry_run:
            return Cleanup(removal, states, before, before)
        activity.update("shrinking the file")
        try:
            await reclaim(url)
        except (StoreFull, StoreLocked) as error:
            # The removal is committed, and later writes will use the free pages.
            warn(f"the file keeps its size: {error}")
    return Cleanup(removal, states, before, stored_bytes(url))
