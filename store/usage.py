"""Which payloads are in use: those of runs, steps and calls, and the pieces of these."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Executable,
    MetaData,
    Row,
    Select,
    Table,
    exists,
    func,
    insert,
    select,
    union,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable, DropTable

from store.connection import StoreConnection
from store.models import Call, Payload, Run, Step
from store.payloads import numbers_in
from store.records import Encoding

REFERENCES = (
    (Run.id, Run.input_payload),
    (Run.id, Run.result_payload),
    (Step.run_id, Step.result_payload),
    (Call.run_id, Call.prompt_payload),
    (Call.run_id, Call.output_payload),
)
"""Every column that refers to a payload, after the one that says whose run it is."""

USED = Table(
    "gc_used",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    prefixes=["TEMPORARY"],
)
"""The marks: a table that only its connection sees. It may name payloads that are not there."""

IS_UNUSED: ColumnElement[bool] = ~exists().where(USED.c.id == Payload.id)

_AT_ONCE = 500  # rows or numbers in one query


class Usage:
    """Marks what is in use, within one transaction, on whose connection the marks are."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def mark(self, going: Select[str]) -> int:
        """Mark every payload that is in use.

        Args:
            going: ids of the runs whose payloads do not count as used by them.

        Returns:
            how many of those in use are damaged, so that what they consist of is not known: it is
            marked as far as it is. The bytes themselves are not checked.
        """
        await self._connection.execute(CreateTable(USED))
        named = union(
            *(
                select(payload).where(payload.is_not(None), run_id.not_in(going))
                for run_id, payload in REFERENCES
            )
        )
        await self._connection.execute(
            insert(USED).from_select(["id"], select(Payload.id).where(Payload.hash.in_(named)))
        )
        num_damaged = await self._num_of_no_kind()
        in_pieces = (
            select(Payload.id, Payload.data, Payload.size)
            .join(USED, USED.c.id == Payload.id)
            .where(Payload.encoding == Encoding.PIECES)
            .order_by(Payload.id)
            .limit(_AT_ONCE)
        )
        rows = await self._rows(in_pieces)
        while rows:
            num_damaged += await self._mark_pieces(rows)
            rows = await self._rows(in_pieces.where(Payload.id > rows[-1].id))
        return num_damaged

    async def forget(self) -> None:
        """Remove the marks."""
        await self._connection.execute(DropTable(USED))

    async def _mark_pieces(self, rows: Sequence[Row[Any]]) -> int:
        """Mark what these payloads consist of; how many of them are damaged."""
        listed = [_numbers(row.data, row.size) for row in rows]
        sizes = await self._sizes({number for numbers in listed for number in numbers})
        if sizes:
            is_sqlite = self._connection.dialect.name == "sqlite"
            new = sqlite.insert(USED) if is_sqlite else postgresql.insert(USED)
            await self._connection.execute(
                new.on_conflict_do_nothing(), [{"id": number} for number in sorted(sizes)]
            )
        return sum(
            sum(sizes.get(number, 0) for number in numbers) != row.size
            for row, numbers in zip(rows, listed, strict=True)
        )

    async def _sizes(self, numbers: Collection[int]) -> Mapping[int, int]:
        """The sizes of those of these payloads that are there: bytes as they were put."""
        wanted = sorted(numbers)
        sizes: dict[int, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = select(Payload.id, Payload.size).where(Payload.id.in_(some))
            sizes.update((row.id, row.size) for row in await self._rows(query))
        return sizes

    async def _num_of_no_kind(self) -> int:
        """How many in use are of an encoding that does not exist: they may be in pieces."""
        count: int | None = await self._connection.scalar(
            select(func.count()).where(
                Payload.id == USED.c.id, Payload.encoding.not_in(list(Encoding))
            )
        )
        assert count is not None, "a count is never NULL"
        return count

    async def _rows(self, query: Executable) -> Sequence[Row[Any]]:
        return (await self._connection.execute(query)).all()


def _numbers(stored: bytes, size: int) -> list[int]:
    """The pieces that are listed; none where the list is damaged."""
    try:
        return numbers_in(stored, size)
    except (ValueError, zlib.error):
        return []
