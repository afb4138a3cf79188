"""Which payloads are in use: those of runs, steps and calls, and the pieces of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    exists,
    func,
    insert,
    literal,
    select,
    union,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable, DropTable

from store.connection import InlineConnection, StoreConnection
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Call, Payload, Run, Step
from store.payloads import Payloads
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
    Column("hash", Text, primary_key=True),
    Column("round", Integer, nullable=False),  # how far from a run, step or call it was found
    prefixes=["TEMPORARY"],
)
"""The marks: a table that only its connection sees. It may name payloads that are not there."""

IS_UNUSED: ColumnElement[bool] = ~exists().where(USED.c.hash == Payload.hash)

_HASH_BYTES = 32
_AT_ONCE = 500  # rows or hashes in one query


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
                select(payload.label("hash")).where(payload.is_not(None), run_id.not_in(going))
                for run_id, payload in REFERENCES
            )
        ).subquery()
        await self._connection.execute(
            insert(USED).from_select(["hash", "round"], select(named.c.hash, literal(0)))
        )
        num_damaged, number = 0, 0
        while (damaged := await self._mark_pieces(number)) is not None:
            num_damaged += damaged
            number += 1
        return num_damaged + await self._num_of_no_kind()

    async def forget(self) -> None:
        """Remove the marks."""
        await self._connection.execute(DropTable(USED))

    async def _mark_pieces(self, number: int) -> int | None:
        """Mark what the payloads of one round consist of, as the next round.

        Returns:
            how many of them are damaged; None where none is in pieces.
        """
        in_pieces = (
            select(Payload.hash, Payload.data, Payload.size)
            .join(USED, USED.c.hash == Payload.hash)
            .where(USED.c.round == number, Payload.encoding == Encoding.PIECES)
            .order_by(USED.c.hash)
            .limit(_AT_ONCE)
        )
        rows = await self._rows(in_pieces)
        if not rows:
            return None
        num_damaged = 0
        while rows:
            found = [await self._consists_of(row.data) for row in rows]
            sizes = await self._sizes(name for _, pieces in found for name in pieces)
            for row, (_, pieces) in zip(rows, found, strict=True):
                num_damaged += not _add_up(pieces, sizes, row.size)
            names = {name for lists, pieces in found for name in lists + pieces}
            await self._mark(names, number + 1)
            rows = await self._rows(in_pieces.where(USED.c.hash > rows[-1].hash))
        return num_damaged

    async def _consists_of(self, stored: bytes) -> tuple[list[str], list[str]]:
        """The payload that lists the pieces, where one does; and the pieces, as far as known."""
        if len(stored) != _HASH_BYTES:
            return [], _hashes(stored)
        name = stored.hex()
        try:
            return [name], _hashes(await Payloads(self._connection).get(name))
        except (StoreCorrupt, PayloadMissing, LookupError):  # the last: of no known encoding
            if isinstance(self._connection, InlineConnection):
                # SQLite drops no table while a statement has rows left, as one has that failed.
                self._connection.close_results()
            return [name], []

    async def _sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        """The sizes of those of these payloads that are there: bytes as they were put, by hash."""
        wanted = sorted(set(names))
        sizes: dict[str, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = select(Payload.hash, Payload.size).where(Payload.hash.in_(some))
            sizes.update((row.hash, row.size) for row in await self._rows(query))
        return sizes

    async def _mark(self, names: set[str], number: int) -> None:
        """Mark these, but for those that are marked."""
        if not names:
            return
        is_sqlite = self._connection.dialect.name == "sqlite"
        new = sqlite.insert(USED) if is_sqlite else postgresql.insert(USED)
        await self._connection.execute(
            new.on_conflict_do_nothing(),
            [{"hash": name, "round": number} for name in sorted(names)],
        )

    async def _num_of_no_kind(self) -> int:
        """How many in use are of an encoding that does not exist: they may be in pieces."""
        count: int | None = await self._connection.scalar(
            select(func.count()).where(
                Payload.hash == USED.c.hash, Payload.encoding.not_in(list(Encoding))
            )
        )
        assert count is not None, "a count is never NULL"
        return count

    async def _rows(self, query: Executable) -> Sequence[Row[Any]]:
        return (await self._connection.execute(query)).all()


def _hashes(listed: bytes) -> list[str]:
    """The hashes that bytes consist of; nonsense where those are no list, and it names nothing."""
    return [
        listed[start : start + _HASH_BYTES].hex() for start in range(0, len(listed), _HASH_BYTES)
    ]


def _add_up(pieces: Sequence[str], sizes: Mapping[str, int], size: int) -> bool:
    """Whether all pieces are there, and make a payload of this size: then its list is sound."""
    return all(name in sizes for name in pieces) and sum(map(sizes.__getitem__, pieces)) == size
