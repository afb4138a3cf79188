"""Records what was in a folder before a state was applied to it."""

from __future__ import annotations

from datetime import UTC, datetime

from cli.reading.state_references import NamedState
from cli.reading.store_reader import store_with
from orchestrator.environment.environments import Environments
from orchestrator.environment.state_applying import BEFORE_APPLY, Applied
from orchestrator.environment.state_changes import state_record
from store.errors import AlreadyRecorded
from store.session import Store
from store.state_records import CheckpointRecord, StateRecord

_PATH = "orchestrate apply"
"""Of the checkpoints that this command records: no step has it."""


async def record_former(
    url: str, home: Environments, named: NamedState, applied: Applied
) -> str | None:
    """Make the folder's former state a checkpoint of the run of which a state was applied.

    Args:
        named: the state that was applied.
    Returns:
        The run's id. None: no run names that state, so that the former one is kept only until the
        next garbage collection.
    """
    now = datetime.now(UTC)
    former = state_record(home.states, applied.former, now)
    async with await store_with(url, named.text) as store:
        return await _record(store, named, former, now)


async def _record(
    store: Store, named: NamedState, former: StateRecord, now: datetime
) -> str | None:
    number = 0
    while True:
        number += 1
        try:
            async with store.transaction() as tx:
                run_id = await tx.states.run_of(named.state) if named.run is None else named.run.id
                if run_id is None:
                    return None
                run = await tx.runs.find(run_id)
                checkpoint = CheckpointRecord(
                    run.id,
                    _PATH if number == 1 else f"{_PATH}#{number}",
                    BEFORE_APPLY,
                    named.workspace or "",
                    former.id,
                    at_s=max((now - run.started_at).total_seconds(), 0.0),
                )
                await tx.states.add(former)
                await tx.states.add_checkpoint(checkpoint)
                return run.id
        except AlreadyRecorded:
            continue
