"""A removal removes expired runs and unused payloads, and nothing that a kept run needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text, update

from store.chunks import split_into_chunks
from store.errors import RunNotFound
from store.models import Base, Edge, Payload, Run
from store.payload_references import REFERENCES
from store.payloads import payload_hash
from store.records import Encoding, Status
from store.retention import PARTS, Removal
from store.session import Store, open_store
from tests.strategies import examples
from tests.unit.store.retention_samples import (
    BETWEEN,
    CHUNKED,
    DAY,
    MANY_CHUNKS,
    NEW,
    NOISE,
    NOTHING,
    NOW,
    OLD,
    SMALL,
    TEXTS,
    contents,
    everything_of,
    record,
    remove,
    stored_hashes,
)
from tests.unit.store.store_places import DATABASES, fresh_store_url
from tests.unit.store.store_samples import a_fit, a_pattern, a_run


async def rows_by_text(store: Store) -> dict[bytes, set[str]]:
    """Text -> hashes of the rows that it takes alone in a store."""
    rows = {}
    for data in TEXTS:
        async with store.transaction() as tx:
            await tx.payloads.put(data)
        rows[data] = await stored_hashes(store)
        await remove(store)
    return rows


five_of_the_texts = st.lists(
    st.none() | st.sampled_from(TEXTS), min_size=len(REFERENCES), max_size=len(REFERENCES)
)


runs = st.lists(
    st.tuples(five_of_the_texts, st.sampled_from([OLD, NEW, None])), min_size=1, max_size=4
)


async def check_law(
    store: Store,
    runs: Sequence[tuple[list[bytes | None], datetime | None]],
    rows: dict[bytes, set[str]],
) -> None:
    async with store.transaction() as tx:
        for number, (used, ended) in enumerate(runs):
            await record(tx, f"run-{number}", used, ended)
    kept = {f"run-{number}" for number, (_, ended) in enumerate(runs) if ended != OLD}
    before = {run_id: await everything_of(store, run_id) for run_id in kept}
    expected, all_rows = await remove(store, dry_run=True), await stored_hashes(store)
    assert await remove(store) == expected
    for run_id in kept:
        assert await everything_of(store, run_id) == before[run_id]
    async with store.reading() as tx:
        assert {run.id for run in await tx.runs.newest()} == kept
    left = await stored_hashes(store)
    assert left == {name for run_id in kept for data in before[run_id][-1] for name in rows[data]}
    assert expected.num_runs == expected.num_steps == len(runs) - len(kept)
    assert expected.num_payloads == len(all_rows) - len(left)
    assert await remove(store) == NOTHING


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_kept_runs_are_complete_and_unused_payloads_are_removed(
    database: str, tmp_path: Path
) -> None:
    with fresh_store_url(database, tmp_path) as url, asyncio.Runner() as runner:
        store = runner.run(open_store(url))
        rows = runner.run(rows_by_text(store))

        @given(runs=runs)
        @settings(max_examples=examples(25), deadline=None)
        def law(runs: list[tuple[list[bytes | None], datetime | None]]) -> None:
            runner.run(remove_all(store))
            runner.run(check_law(store, runs, rows))

        law()
        runner.run(store.close())


async def remove_all(store: Store) -> None:
    """Make every run old, and remove it: the store is empty afterwards."""
    async with store._writer.begin() as connection:
        await connection.execute(update(Run).values(status=Status.FAILED, finished_at=OLD))
    await remove(store)
    assert await stored_hashes(store) == set()


async def test_a_payload_is_kept_while_one_column_of_one_run_refers_to_it(store: Store) -> None:
    for column in range(len(REFERENCES)):
        used = [MANY_CHUNKS if other == column else None for other in range(len(REFERENCES))]
        async with store.transaction() as tx:
            await record(tx, f"old-{column}", [MANY_CHUNKS] * len(REFERENCES))
            await record(tx, f"new-{column}", used, NEW)
        assert (await remove(store)).num_payloads == 0
        assert (await everything_of(store, f"new-{column}"))[-1] == [MANY_CHUNKS]
        assert (await remove(store, before=NEW + DAY)).num_payloads > len(MANY_CHUNKS) / 8192
        assert await stored_hashes(store) == set()


async def test_a_dry_run_changes_nothing_and_counts_what_would_be_removed(store_url: str) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        await record(tx, "old", [SMALL, None, CHUNKED, MANY_CHUNKS, None])
        await tx.patterns.add(a_pattern(run_id="old"))
    before = contents(store_url)
    async with await open_store(store_url) as store:
        expected = await remove(store, dry_run=True)
    assert contents(store_url) == before
    size = sum(len(row.data) for row in before["payloads"])
    assert expected == Removal(1, 1, 2, len(before["payloads"]), size)


async def test_a_dry_run_does_not_change_the_file(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    async with await open_store(f"sqlite:///{file}") as store, store.transaction() as tx:
        await record(tx, "old", [SMALL, None, CHUNKED, MANY_CHUNKS, None])
    before = file.read_bytes()
    async with await open_store(f"sqlite:///{file}") as store:
        await remove(store, dry_run=True)
    assert file.read_bytes() == before


async def test_a_running_run_is_kept_however_old_it_is(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "running", [CHUNKED, None, SMALL, None, MANY_CHUNKS], None)
    before = await everything_of(store, "running")
    assert await remove(store, before=NOW + DAY) == NOTHING
    assert await everything_of(store, "running") == before


@pytest.mark.parametrize(("seconds_left", "is_kept"), [(60, True), (0, False), (-60, False)])
async def test_an_ended_run_is_kept_while_it_is_leased(
    store: Store, seconds_left: int, is_kept: bool
) -> None:
    until = NOW + timedelta(seconds=seconds_left)
    async with store.transaction() as tx:
        failed = replace(a_run(leased_until=until), status=Status.FAILED, finished_at=OLD)
        await tx.runs.add(failed)
    assert (await remove(store)).num_runs == (not is_kept)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_a_run_is_removed_only_if_it_ended_before_the_given_time(
    store: Store, status: Status
) -> None:
    ends = {"before": BETWEEN - timedelta(microseconds=1), "at": BETWEEN, "after": NEW}
    async with store.transaction() as tx:
        for name, ended in ends.items():
            await tx.runs.add(a_run(name, status=status, finished_at=ended))
    assert (await remove(store)).num_runs == 1
    async with store.reading() as tx:
        assert {run.id for run in await tx.runs.newest()} == {"at", "after"}
        with pytest.raises(RunNotFound):
            await tx.runs.get("before")


async def test_patterns_and_fits_are_kept_when_their_runs_are_removed(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "old", [None] * len(REFERENCES))
        await record(tx, "new", [None] * len(REFERENCES), NEW)
        ids = [await tx.patterns.add(a_pattern(run_id=name)) for name in ("old", "new")]
        await tx.fits.put(a_fit())
    async with store.reading() as tx:
        before, fits = await tx.patterns.get(ids), await tx.fits.all()
    assert (await remove(store)).num_runs == 1
    async with store.reading() as tx:
        assert list(await tx.patterns.get(ids)) == [replace(before[0], run_id=None), before[1]]
        assert await tx.fits.all() == fits


async def damage(store: Store, name: str, **values: object) -> None:
    async with store._writer.begin() as connection:
        if "encoding" in values:
            await connection.execute(
                text("UPDATE payloads SET encoding = :encoding WHERE hash = :name"),
                {"encoding": values["encoding"], "name": name},
            )
        else:
            await connection.execute(update(Payload).where(Payload.hash == name).values(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"data": b""},
        {"data": b"short"},
        {"data": NOISE[:64]},
        {"data": NOISE[:32]},
        {"size": 1},
        {"encoding": "unheard-of"},
    ],
    ids=str,
)
@pytest.mark.parametrize("data", [CHUNKED, MANY_CHUNKS], ids=["few chunks", "many"])
async def test_possible_chunks_of_a_payload_with_a_damaged_list_are_kept(
    store: Store, data: bytes, values: dict[str, object]
) -> None:
    async with store.transaction() as tx:
        names = await record(tx, "new", [data, None, None, None, None], NEW)
        await record(tx, "old", [NOISE[:50], None, None, None, None])
    before = await stored_hashes(store)
    assert names[0] is not None
    await damage(store, names[0], **values)
    removed = await remove(store)
    assert (removed.num_runs, removed.num_payloads, removed.num_damaged) == (1, 0, 1)
    assert removed.num_spared >= 1
    assert await stored_hashes(store) == before
    assert (await remove(store, before=NOW)).num_damaged == 0
    assert await stored_hashes(store) == set()


async def test_a_payload_without_one_of_its_chunks_counts_as_damaged(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "new", [CHUNKED, None, None, None, None], NEW)
    lost = payload_hash(list(split_into_chunks(CHUNKED))[3])
    async with store._writer.begin() as connection:
        await connection.execute(text("DELETE FROM payloads WHERE hash = :name"), {"name": lost})
    before = await stored_hashes(store)
    removed = await remove(store)
    assert (removed.num_damaged, removed.num_spared) == (1, 0)
    assert await stored_hashes(store) == before


async def test_a_damaged_payload_that_is_not_in_use_is_removed(store: Store) -> None:
    async with store.transaction() as tx:
        names = await record(tx, "old", [MANY_CHUNKS, SMALL, None, None, None])
    assert names[0] is not None
    await damage(store, names[0], data=b"rubbish")
    assert (await remove(store)).num_damaged == 0
    assert await stored_hashes(store) == set()


def test_the_removal_covers_every_table_and_every_reference_to_payloads() -> None:
    """Fails when a table is added, until it is decided whether it is removed with its run."""
    others = {"runs", "payloads", "patterns", "fits", "states", "queues", "schedules"}
    tables = Base.metadata.tables
    assert set(tables) == others | {part.__tablename__ for part in PARTS}
    referring = {
        (table.name, key.parent.name)
        for table in tables.values()
        for key in table.foreign_keys
        if key.column.table is Payload.__table__
    }
    assert referring == {(column.class_.__tablename__, column.key) for _, column in REFERENCES}
    assert PARTS[0] is Edge  # before the calls, to which edges refer
    assert set(Encoding) == {Encoding.IDENTITY, Encoding.ZLIB, Encoding.CHUNKED}
