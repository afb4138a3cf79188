"""What is not kept for good: runs that ended long ago, and payloads that nothing refers to.

Each transaction marks what has to go in tables that only its connection sees, then removes it; who
has much to remove needs several, as others wait for each. Patterns outlive their runs: they are
what was learned.

A SQLite transaction that writes is alone from its start (BEGIN IMMEDIATE): nobody can begin to use
what was found unused. How it is on PostgreSQL, `_be_alone` tells.
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

from store.connection import StoreConnection
from store.models import Call, Edge, Pattern, Payload, Run, Stage, Step
from store.payloads import WHOLE_BYTES
from store.records import Status
from store.urls import WAIT_S
from store.usage import IS_UNUSED, REFERENCES, Usage

PARTS = (Edge, Call, Step, Stage)
"""What goes with its run; before it, those that refer to it."""

_GOING = Table("gc_runs", MetaData(), Column("id", Text, primary_key=True), prefixes=["TEMPORARY"])
_GOING_IDS = select(_GOING.c.id)

# What a damaged payload may consist of: no piece is larger.
_MAY_BE_NAMED = Payload.size <= WHOLE_BYTES

HOLD_S = 5.0
"""For so long one transaction removes payloads: others wait for its end, and WAIT_S at most."""

# Hashes are evenly spread: these divide them.
_BORDERS = [f"{first:02x}" for first in range(4, 256, 4)]
_SHARES = [
    and_(
        true() if low is None else Payload.hash >= low,
        true() if high is None else Payload.hash < high,
    )
    for low, high in zip([None, *_BORDERS], [*_BORDERS, None], strict=True)
]
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, or would be.

    Attributes:
        payload_bytes: what the payloads took in the database, compressed and in pieces.
        num_damaged: payloads in use that are damaged, so that their pieces are not known.
        num_spared: payloads that are kept although nothing is known to use them, because a
            damaged one may.
        is_complete: whether nothing is left to remove; else another transaction should go on.
    """

    num_runs: int
    num_steps: int
    num_calls: int
    num_payloads: int
    payload_bytes: int
    num_damaged: int = 0
    num_spared: int = 0
    is_complete: bool = True

    def and_then(self, later: Removal) -> Removal:
        """Both together, the other being what a later transaction removed."""
        return replace(
            later,
            num_runs=self.num_runs + later.num_runs,
            num_steps=self.num_steps + later.num_steps,
            num_calls=self.num_calls + later.num_calls,
            num_payloads=self.num_payloads + later.num_payloads,
            payload_bytes=self.payload_bytes + later.payload_bytes,
        )


class Retention:
    """What one transaction removes."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def remove(
        self,
        *,
        ended_before: datetime,
        now: datetime,
        dry_run: bool = False,
        hold_s: float = HOLD_S,
        progress: Callable[[str], None] = lambda told: None,
    ) -> Removal:
        """Remove runs that ended before a moment, then every payload that nothing refers to.

        A run that is recorded as running stays, whenever that was; so does one that is leased.

        Args:
            now: leases that ended before have run out.
            dry_run: change nothing, only count.
            hold_s: leave payloads for another transaction when removing them has taken that long.
            progress: told what is being done.

        Raises:
            StoreLocked: other processes did not let go of PostgreSQL's tables for WAIT_S.
        """
        if not dry_run:
            await self._be_alone()
        progress("looking for what is in use")
        await self._mark_runs(ended_before, now)
        usage = Usage(self._connection)
        num_damaged = await usage.mark(_GOING_IDS)
        is_going = and_(IS_UNUSED, ~_MAY_BE_NAMED) if num_damaged else IS_UNUSED
        counted = await self._counted()
        if not dry_run:
            progress("removing runs")
            await self._remove_runs()
        removal = await self._remove_payloads(
            counted, is_going, hold_s=None if dry_run else hold_s, progress=progress
        )
        if num_damaged and removal.is_complete:
            num_unused = await self._number(
                select(func.count()).select_from(Payload).where(IS_UNUSED)
            )
            num_spared = num_unused - (removal.num_payloads if dry_run else 0)
            removal = replace(removal, num_damaged=num_damaged, num_spared=num_spared)
        await usage.forget()
        await self._connection.execute(DropTable(_GOING))
        return removal

    async def _be_alone(self) -> None:
        """Keep others on PostgreSQL from using what is about to be found unused, until we commit.

        Whoever puts a payload looks for its hash first, and where it is known stores nothing: from
        that look to the end of its transaction the row must stay. Only ACCESS EXCLUSIVE has us wait
        for those who have looked, and those who are about to look for us. A foreign key would fail
        them instead, and no foreign key protects a piece.

        We need the tables that refer to payloads as well, for their indexes. Others may hold one
        of them and wait for a payload: to wait for them in turn would be a deadlock, so we let go
        of all, and try again.
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
                is_taken = getattr(error.orig, "sqlstate", None) == "55P03"
                if not is_taken or time.monotonic() > give_up_s:
                    raise
                await self._connection.execute(text("ROLLBACK TO SAVEPOINT gc"))
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _mark_runs(self, ended_before: datetime, now: datetime) -> None:
        is_free = or_(Run.leased_until.is_(None), Run.leased_until <= now)
        going = select(Run.id).where(
            Run.status != Status.RUNNING, Run.finished_at < ended_before, is_free
        )
        await self._connection.execute(CreateTable(_GOING))
        await self._connection.execute(insert(_GOING).from_select(["id"], going))

    async def _counted(self) -> Removal:
        """The runs that are marked, with what goes with them, in numbers."""
        return Removal(
            num_runs=await self._number(select(func.count()).select_from(_GOING)),
            num_steps=await self._number(select(func.count()).where(Step.run_id.in_(_GOING_IDS))),
            num_calls=await self._number(select(func.count()).where(Call.run_id.in_(_GOING_IDS))),
            num_payloads=0,
            payload_bytes=0,
        )

    async def _number(self, query: Select[Any]) -> int:
        return int(await self._connection.scalar(query) or 0)

    async def _remove_runs(self) -> None:
        """Remove the runs with all that they did; what was learned of them stays, without them."""
        for part in PARTS:
            await self._connection.execute(delete(part).where(part.run_id.in_(_GOING_IDS)))
        theirs = Pattern.run_id.in_(_GOING_IDS)
        # Whoever changes patterns locks them first, in the order of their ids.
        locked = await self._connection.execute(
            select(Pattern.id).where(theirs).order_by(Pattern.id).with_for_update()
        )
        locked.all()  # SQLite drops no table while a statement has rows left
        await self._connection.execute(update(Pattern).where(theirs).values(run_id=None))
        await self._connection.execute(delete(Run).where(Run.id.in_(_GOING_IDS)))

    async def _remove_payloads(
        self,
        removal: Removal,
        is_going: ColumnElement[bool],
        *,
        hold_s: float | None,
        progress: Callable[[str], None],
    ) -> Removal:
        """Remove payloads, share by share, so that an interruption is heard in between.

        Args:
            removal: what is removed besides.
            hold_s: None only counts them.
        """
        numbers = select(
            func.count().label("num"), func.sum(func.length(Payload.data)).label("size")
        ).select_from(Payload)
        began_s, is_indexed = time.monotonic(), False
        for number, share in enumerate(_SHARES, 1):
            result = await self._connection.execute(numbers.where(is_going, share))
            found = result.mappings().one()
            removal = replace(
                removal,
                num_payloads=removal.num_payloads + found["num"],
                payload_bytes=removal.payload_bytes + int(found["size"] or 0),
            )
            if found["num"] and hold_s is not None:
                if not is_indexed:
                    await self._index_references()
                    is_indexed = True
                await self._connection.execute(delete(Payload).where(is_going, share))
                progress(f"removing payloads: {100 * number // len(_SHARES)}%")
                if time.monotonic() - began_s > hold_s and number < len(_SHARES):
                    removal = replace(removal, is_complete=False)
                    break
            await asyncio.sleep(0)
        if is_indexed:
            await self._drop_indexes()
        return removal

    async def _index_references(self) -> None:
        """For each payload that goes the database looks through all that could still refer to it.

        These indexes spare it that. They last as long as the transaction: nothing else needs them,
        and every step that is recorded would have to pay for them.
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
