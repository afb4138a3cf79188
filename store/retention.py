"""Garbage collection: removes runs that ended long ago, and payloads that nothing refers to.

Each transaction marks in temporary tables what to remove, then removes it. Removing much takes
several transactions, because other processes wait for the end of each. Patterns are kept when
their runs are removed: later runs still use them. So are states of workspaces, which come out of
use: whoever removes their files removes them (`States.unused`).

A SQLite transaction that writes is the only one from its start (BEGIN IMMEDIATE), so that no other
process can begin to use a payload that was found unused. On PostgreSQL `_lock_tables` ensures that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable, DropTable

from store.database.connection import StoreConnection
from store.database.urls import WAIT_S
from store.models import Call, Checkpoint, Edge, Pattern, Payload, Run, Stage, StateEdge, Step
from store.payload_references import IS_UNUSED, REFERENCES, Usage
from store.payloads import MAX_UNSPLIT_BYTES
from store.records import Status
from store.state_uses import StateUses

PARTS = (Edge, Call, Step, Stage, StateEdge, Checkpoint)
"""Tables with rows that are removed with their run. A table precedes those to which it refers."""

_EXPIRED = Table(
    "gc_runs", MetaData(), Column("id", Text, primary_key=True), prefixes=["TEMPORARY"]
)
_EXPIRED_IDS = select(_EXPIRED.c.id)

# No chunk is larger: these may be chunks of a damaged payload.
_MAY_BE_CHUNK = Payload.size <= MAX_UNSPLIT_BYTES

HOLD_S = 5.0
"""Seconds after which a transaction stops removing payloads: other transactions wait for its end,
and fail after WAIT_S."""

# Hashes are uniformly distributed: these bounds divide the payloads into equal parts.
_BOUNDS = [f"{first:02x}" for first in range(4, 256, 4)]
_HASH_RANGES = [
    and_(
        true() if low is None else Payload.hash >= low,
        true() if high is None else Payload.hash < high,
    )
    for low, high in zip([None, *_BOUNDS], [*_BOUNDS, None], strict=True)
]
_RETRY_S = 0.05  # between two attempts to lock PostgreSQL's tables


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, or would be removed.

    Attributes:
        payload_bytes: stored bytes of the payloads, after compression and chunking.
        num_damaged: payloads in use that are damaged, so that their chunks are not known.
        num_spared: unused payloads that are kept because they may be chunks of a damaged one.
        is_complete: False if another transaction should continue the removal.
        unused_states: ids of states that only the removed runs named.
    """

    num_runs: int
    num_steps: int
    num_calls: int
    num_payloads: int
    payload_bytes: int
    num_damaged: int = 0
    num_spared: int = 0
    is_complete: bool = True
    unused_states: frozenset[str] = frozenset()

    def and_then(self, later: Removal) -> Removal:
        """This removal followed by one of a later transaction: sums, and the later one's state."""
        return replace(
            later,
            num_runs=self.num_runs + later.num_runs,
            num_steps=self.num_steps + later.num_steps,
            num_calls=self.num_calls + later.num_calls,
            num_payloads=self.num_payloads + later.num_payloads,
            payload_bytes=self.payload_bytes + later.payload_bytes,
            unused_states=self.unused_states | later.unused_states,
        )


class Retention:
    """Removes expired runs and unused payloads within one transaction."""

    def __init__(self, connection: StoreConnection, uses: StateUses) -> None:
        self._connection = connection
        self._uses = uses

    async def remove(
        self,
        *,
        ended_before: datetime,
        now: datetime,
        dry_run: bool = False,
        hold_s: float = HOLD_S,
        progress: Callable[[str], None] = lambda message: None,
    ) -> Removal:
        """Remove runs that ended before a moment, then every payload that nothing refers to.

        Runs that are recorded as running are kept, however old they are; so are leased runs.

        Args:
            now: leases until this moment have expired; states come out of use at it.
            dry_run: change nothing, only count.
            hold_s: stop after so many seconds of removing payloads; see `is_complete`.
            progress: called with a message when the next part of the work begins.

        Raises:
            StoreLocked: other processes held PostgreSQL's tables for WAIT_S.
        """
        if not dry_run:
            await self._lock_tables()
        progress("finding payloads in use")
        await self._mark_expired(ended_before, now)
        usage = Usage(self._connection)
        num_damaged = await usage.mark(_EXPIRED_IDS)
        is_removable = and_(IS_UNUSED, ~_MAY_BE_CHUNK) if num_damaged else IS_UNUSED
        expired = await self._count_expired()
        if not dry_run:
            progress("removing runs")
            await self._remove_runs(now)
        removal = await self._remove_payloads(
            expired, is_removable, hold_s=None if dry_run else hold_s, progress=progress
        )
        if num_damaged and removal.is_complete:
            num_unused = await self._count(
                select(func.count()).select_from(Payload).where(IS_UNUSED)
            )
            num_spared = num_unused - (removal.num_payloads if dry_run else 0)
            removal = replace(removal, num_damaged=num_damaged, num_spared=num_spared)
        await usage.drop()
        await self._connection.execute(DropTable(_EXPIRED))
        return removal

    async def _lock_tables(self) -> None:
        """On PostgreSQL, keep others from using unused payloads until this transaction commits.

        `Payloads.put` reads the hash first and stores nothing if it exists: from that read to the
        end of its transaction the row must not be removed. Only ACCESS EXCLUSIVE makes this
        transaction wait for those that have read, and later readers wait for this one. A foreign
        key would make them fail instead, and chunks are not protected by a foreign key.

        The tables that refer to payloads are locked too, for `_index_references`. Another
        transaction may hold one of them and wait for a payload. Waiting for it would be a deadlock,
        so all locks are released and requested again.
        """
        if self._connection.dialect.name != "postgresql":
            return
        give_up_s = time.monotonic() + WAIT_S
        await self._connection.execute(text("SAVEPOINT gc"))
        while True:
            try:
                await self._connection.execute(text("LOCK payloads IN ACCESS EXCLUSIVE MODE"))
                await self._connection.execute(
                    text("LOCK runs, steps, calls IN ACCESS EXCLUSIVE MODE NOWAIT")
                )
            except OperationalError as error:
                is_locked = getattr(error.orig, "sqlstate", None) == "55P03"
                if not is_locked or time.monotonic() > give_up_s:
                    raise
                await self._connection.execute(text("ROLLBACK TO SAVEPOINT gc"))
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _mark_expired(self, ended_before: datetime, now: datetime) -> None:
        is_free = or_(Run.leased_until.is_(None), Run.leased_until <= now)
        expired = select(Run.id).where(
            Run.status != Status.RUNNING, Run.finished_at < ended_before, is_free
        )
        await self._connection.execute(CreateTable(_EXPIRED))
        await self._connection.execute(insert(_EXPIRED).from_select(["id"], expired))

    async def _count_expired(self) -> Removal:
        """The numbers of marked runs, their steps and calls; the states that only they name."""
        return Removal(
            num_runs=await self._count(select(func.count()).select_from(_EXPIRED)),
            num_steps=await self._count(select(func.count()).where(Step.run_id.in_(_EXPIRED_IDS))),
            num_calls=await self._count(select(func.count()).where(Call.run_id.in_(_EXPIRED_IDS))),
            num_payloads=0,
            payload_bytes=0,
            unused_states=frozenset(await self._uses.used_only_by(_EXPIRED_IDS)),
        )

    async def _count(self, query: Select[Any]) -> int:
        return int(await self._connection.scalar(query) or 0)

    async def _remove_runs(self, now: datetime) -> None:
        """Remove the marked runs with all their parts; release their states and patterns."""
        await self._uses.release_all_of(_EXPIRED_IDS, at=now)
        for part in PARTS:
            await self._connection.execute(delete(part).where(part.run_id.in_(_EXPIRED_IDS)))
        is_detached = Pattern.run_id.in_(_EXPIRED_IDS)
        # Patterns are locked in the order of their ids before they change; see store/patterns.py.
        locked = await self._connection.execute(
            select(Pattern.id).where(is_detached).order_by(Pattern.id).with_for_update()
        )
        locked.all()  # SQLite cannot drop a table while a statement has unread rows
        await self._connection.execute(update(Pattern).where(is_detached).values(run_id=None))
        await self._connection.execute(delete(Run).where(Run.id.in_(_EXPIRED_IDS)))

    async def _remove_payloads(
        self,
        removal: Removal,
        is_removable: ColumnElement[bool],
        *,
        hold_s: float | None,
        progress: Callable[[str], None],
    ) -> Removal:
        """Remove payloads, one range of hashes after another, so that Ctrl-C works in between.

        Args:
            removal: the counts so far, to which the payloads are added.
            hold_s: as in `remove`; None: only count the payloads.
        """
        totals = select(
            func.count().label("num"), func.sum(func.length(Payload.data)).label("size")
        ).select_from(Payload)
        began_s, is_indexed = time.monotonic(), False
        for number, hash_range in enumerate(_HASH_RANGES, 1):
            result = await self._connection.execute(totals.where(is_removable, hash_range))
            total = result.mappings().one()
            removal = replace(
                removal,
                num_payloads=removal.num_payloads + total["num"],
                payload_bytes=removal.payload_bytes + int(total["size"] or 0),
            )
            if total["num"] and hold_s is not None:
                if not is_indexed:
                    await self._index_references()
                    is_indexed = True
                await self._connection.execute(delete(Payload).where(is_removable, hash_range))
                progress(f"removing payloads: {100 * number // len(_HASH_RANGES)}%")
                if time.monotonic() - began_s > hold_s and number < len(_HASH_RANGES):
                    removal = replace(removal, is_complete=False)
                    break
            await asyncio.sleep(0)
        if is_indexed:
            await self._drop_indexes()
        return removal

    async def _index_references(self) -> None:
        """Create indexes on the columns that refer to payloads, until the transaction ends.

        For each deleted payload the database checks that no row refers to it: a full scan without
        an index. The indexes are not permanent, because they would slow down every write.
        """
        for _, column in REFERENCES:
            table, name = column.class_.__tablename__, column.key
            await self._connection.execute(
                text(f"CREATE INDEX gc_{table}_{name} ON {table} ({name}) WHERE {name} IS NOT NULL")
            )

    async def _drop_indexes(self) -> None:
        for _, column in REFERENCES:
            await self._connection.execute(
                text(f"DROP INDEX gc_{column.class_.__tablename__}_{column.key}")
            )
