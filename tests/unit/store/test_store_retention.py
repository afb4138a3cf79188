"""What is removed, and above all what is not: whatever a run that stays still needs."""

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

from store.chunks import pieces
from store.errors import RunNotFound
from store.models import Base, Edge, Payload, Run
from store.payloads import payload_hash
from store.records import Encoding, Status
from store.retention import PARTS, Removal
from store.session import Store, open_store
from store.usage import REFERENCES
from tests.unit.store.retention_samples import (
    BETWEEN,
    DAY,
    IN_PIECES,
    MANY_PIECES,
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
    stored,
)
from tests.unit.store.store_places import DATABASES, fresh_store_url
from tests.unit.store.store_samples import a_fit, a_pattern, a_run


async def rows_by_text(store: Store) -> dict[bytes, set[str]]:
    """The rows that each of the texts takes alone."""
    rows = {}
    for data in TEXTS:
        async with store.transaction() as tx:
            await tx.payloads.put(data)
        rows[data] = await stored(store)
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
    stay = {f"run-{number}" for number, (_, ended) in enumerate(runs) if ended != OLD}
    before = {run_id: await everything_of(store, run_id) for run_id in stay}
    expected, all_rows = await remove(store, dry_run=True), await stored(store)
    assert await remove(store) == expected
    for run_id in stay:
        assert await everything_of(store, run_id) == before[run_id]
    async with store.reading() as tx:
        assert {run.id for run in await tx.runs.newest()} == stay
    left = await stored(store)
    assert left == {name for run_id in stay for data in before[run_id][-1] for name in rows[data]}
    assert expected.num_runs == expected.num_steps == len(runs) - len(stay)
    assert expected.num_payloads == len(all_rows) - len(left)
    assert await remove(store) == NOTHING


@pytest.mark.parametrize("database", DATABASES)
def test_what_stays_is_whole_and_what_nothing_uses_is_gone(database: str, tmp_path: Path) -> None:
    with fresh_store_url(database, tmp_path) as url, asyncio.Runner() as runner:
        store = runner.run(open_store(url))
        rows = runner.run(rows_by_text(store))

        @given(runs=runs)
        @settings(max_examples=25, deadline=None)
        def law(runs: list[tuple[list[bytes | None], datetime | None]]) -> None:
            runner.run(make_all_old(store))
            runner.run(check_law(store, runs, rows))

        law()
        runner.run(store.close())


async def make_all_old(store: Store) -> None:
    """Have every run end long ago, and remove it: nothing is left."""
    async with store._writer.begin() as connection:
        await connection.execute(update(Run).values(status=Status.FAILED, finished_at=OLD))
    await remove(store)
    assert await stored(store) == set()


async def test_a_payload_stays_while_one_place_of_one_run_refers_to_it(store: Store) -> None:
    for place in range(len(REFERENCES)):
        used = [MANY_PIECES if other == place else None for other in range(len(REFERENCES))]
        async with store.transaction() as tx:
            await record(tx, f"old-{place}", [MANY_PIECES] * len(REFERENCES))
            await record(tx, f"new-{place}", used, NEW)
        assert (await remove(store)).num_payloads == 0
        assert (await everything_of(store, f"new-{place}"))[-1] == [MANY_PIECES]
        assert (await remove(store, before=NEW + DAY)).num_payloads > len(MANY_PIECES) / 8192
        assert await stored(store) == set()


async def test_a_dry_run_changes_no_byte_and_says_what_would_go(store_url: str) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        await record(tx, "old", [SMALL, None, IN_PIECES, MANY_PIECES, None])
        await tx.patterns.add(a_pattern(run_id="old"))
    before = contents(store_url)
    async with await open_store(store_url) as store:
        told = await remove(store, dry_run=True)
    assert contents(store_url) == before
    size = sum(len(row.data) for row in before["payloads"])
    assert told == Removal(1, 1, 2, len(before["payloads"]), size)


async def test_a_dry_run_does_not_touch_the_file(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    async with await open_store(f"sqlite:///{file}") as store, store.transaction() as tx:
        await record(tx, "old", [SMALL, None, IN_PIECES, MANY_PIECES, None])
    before = file.read_bytes()
    async with await open_store(f"sqlite:///{file}") as store:
        await remove(store, dry_run=True)
    assert file.read_bytes() == before


async def test_a_run_that_has_not_ended_stays_however_old_it_is(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "running", [IN_PIECES, None, SMALL, None, MANY_PIECES], None)
    before = await everything_of(store, "running")
    assert await remove(store, before=NOW + DAY) == NOTHING
    assert await everything_of(store, "running") == before


@pytest.mark.parametrize(("seconds_left", "stays"), [(60, True), (0, False), (-60, False)])
async def test_an_ended_run_stays_while_somebody_has_leased_it(
    store: Store, seconds_left: int, stays: bool
) -> None:
    until = NOW + timedelta(seconds=seconds_left)
    async with store.transaction() as tx:
        failed = replace(a_run(leased_until=until), status=Status.FAILED, finished_at=OLD)
        await tx.runs.add(failed)
    assert (await remove(store)).num_runs == (not stays)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_a_run_goes_only_when_it_ended_before_the_moment(
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


async def test_what_was_learned_outlives_its_run(store: Store) -> None:
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
@pytest.mark.parametrize("data", [IN_PIECES, MANY_PIECES], ids=["few pieces", "many"])
async def test_where_a_list_is_damaged_nothing_goes_that_may_stand_on_it(
    store: Store, data: bytes, values: dict[str, object]
) -> None:
    async with store.transaction() as tx:
        names = await record(tx, "new", [data, None, None, None, None], NEW)
        await record(tx, "old", [NOISE[:50], None, None, None, None])
    before = await stored(store)
    assert names[0] is not None
    await damage(store, names[0], **values)
    told = await remove(store)
    assert (told.num_runs, told.num_payloads, told.num_damaged) == (1, 0, 1)
    assert told.num_spared >= 1
    assert await stored(store) == before
    assert (await remove(store, before=NOW)).num_damaged == 0
    assert await stored(store) == set()


async def test_a_lost_piece_is_damage_as_well(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "new", [IN_PIECES, None, None, None, None], NEW)
    lost = payload_hash(list(pieces(IN_PIECES))[3])
    async with store._writer.begin() as connection:
        await connection.execute(text("DELETE FROM payloads WHERE hash = :name"), {"name": lost})
    before = await stored(store)
    told = await remove(store)
    assert (told.num_damaged, told.num_spared) == (1, 0)
    assert await stored(store) == before


async def test_damage_to_what_nobody_uses_hinders_nothing(store: Store) -> None:
    async with store.transaction() as tx:
        names = await record(tx, "old", [MANY_PIECES, SMALL, None, None, None])
    assert names[0] is not None
    await damage(store, names[0], data=b"rubbish")
    assert (await remove(store)).num_damaged == 0
    assert await stored(store) == set()


def test_no_table_and_no_reference_is_unknown_to_the_removal() -> None:
    """Whoever adds a table decides here whether it goes with its run."""
    others = {"runs", "payloads", "patterns", "fits"}
    tables = Base.metadata.tables
    assert set(tables) == others | {part.__tablename__ for part in PARTS}
    referring = {
        (table.name, key.parent.name)
        for table in tables.values()
        for key in table.foreign_keys
        if key.column.table is Payload.__table__
    }
    assert referring == {(column.class_.__tablename__, column.key) for _, column in REFERENCES}
    assert PARTS[0] is Edge  # before the calls to which it refers
    assert set(Encoding) == {Encoding.IDENTITY, Encoding.ZLIB, Encoding.PIECES}
