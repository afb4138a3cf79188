"""Marks the payloads in use: those of runs, steps and calls, and their chunks."""

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

from store.database.connection import StoreConnection
from store.models import Call, Payload, Run, Step
from store.payloads import decode_chunk_ids
from store.records import Encoding

REFERENCES = (
    (Run.id, Run.input_payload),
    (Run.id, Run.result_payload),
    (Step.run_id, Step.result_payload),
    (Call.run_id, Call.prompt_payload),
    (Call.run_id, Call.output_payload),
)
"""(column with the run's id, column that refers to a payload): all such columns."""

USED = Table(
    "gc_used",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    prefixes=["TEMPORARY"],
)
"""Ids of the payloads in use: a temporary table, visible to its connection only."""

IS_UNUSED: ColumnElement[bool] = ~exists().where(USED.c.id == Payload.id)

_BATCH = 500  # rows or ids in one query


class Usage:
    """Marks the payloads in use in a temporary table of the transaction's connection."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def mark(self, excluded_runs: Select[str]) -> int:
        """Mark every payload in use.

        Args:
            excluded_runs: ids of runs that do not count as users of their payloads.

        Returns:
            number of payloads in use with a damaged list of chunks; only the chunks that can still
            be found are marked. The bytes of payloads are not checked.
        """
        await self._connection.execute(CreateTable(USED))
        referenced = union(
            *(
                select(payload).where(payload.is_not(None), run_id.not_in(excluded_runs))
                for run_id, payload in REFERENCES
            )
        )
        await self._connection.execute(
            insert(USED).from_select(["id"], select(Payload.id).where(Payload.hash.in_(referenced)))
        )
        num_damaged = await self._num_unknown_encodings()
        chunked = (
            select(Payload.id, Payload.data, Payload.size)
            .join(USED, USED.c.id == Payload.id)
            .where(Payload.encoding == Encoding.CHUNKED)
            .order_by(Payload.id)
            .limit(_BATCH)
        )
        rows = await self._rows(chunked)
        while rows:
            num_damaged += await self._mark_chunks(rows)
            rows = await self._rows(chunked.where(Payload.id > rows[-1].id))
        return num_damaged

    async def drop(self) -> None:
        """Drop the table of marks."""
        await self._connection.execute(DropTable(USED))

    async def _mark_chunks(self, rows: Sequence[Row[Any]]) -> int:
        """Mark the chunks of these payloads; returns how many of the payloads are damaged."""
        ids_of_each = [_chunk_ids(row.data, row.size) for row in rows]
        sizes = await self._sizes({chunk_id for ids in ids_of_each for chunk_id in ids})
        if sizes:
            is_sqlite = self._connection.dialect.name == "sqlite"
            new = sqlite.insert(USED) if is_sqlite else postgresql.insert(USED)
            await self._connection.execute(
                new.on_conflict_do_nothing(), [{"id": chunk_id} for chunk_id in sorted(sizes)]
            )
        return sum(
            sum(sizes.get(chunk_id, 0) for chunk_id in ids) != row.size
            for row, ids in zip(rows, ids_of_each, strict=True)
        )

    async def _sizes(self, ids: Collection[int]) -> Mapping[int, int]:
        """Row id -> size in bytes, uncompressed, for those of these payloads that are stored."""
        sorted_ids = sorted(ids)
        sizes: dict[int, int] = {}
        for start in range(0, len(sorted_ids), _BATCH):
            batch = sorted_ids[start : start + _BATCH]
            query = select(Payload.id, Payload.size).where(Payload.id.in_(batch))
            sizes.update((row.id, row.size) for row in await self._rows(query))
        return sizes

    async def _num_unknown_encodings(self) -> int:
        """The number of payloads in use with an unknown encoding: they may have chunks."""
        count: int | None = await self._connection.scalar(
            select(func.count()).where(
                Payload.id == USED.c.id, Payload.encoding.not_in(list(Encoding))
            )
        )
        assert count is not None, "a count is never NULL"
        return count

    async def _rows(self, query: Executable) -> Sequence[Row[Any]]:
        return (await self._connection.execute(query)).all()


def _chunk_ids(stored: bytes, size: int) -> list[int]:
    """Row ids of a payload's chunks; empty if the list is damaged."""
    try:
        return decode_chunk_ids(stored, size)
    except (ValueError, zlib.error):
        return []
