"""Databases of earlier revisions, with rows in them, are upgraded and lose nothing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from blake3 import blake3
from sqlalchemy import Connection, MetaData, insert, inspect, select, text

from store.chunks import split_into_chunks
from store.database.schema import alembic_config
from store.errors import StoreCorrupt
from store.records import CallKind, CallOutcome, EdgeRecord, PatternRecord, Status
from store.session import HEAD, open_store
from tests.unit.store.store_places import connected
from tests.unit.store.store_samples import NOON, a_call, a_full_run, a_pattern, a_run, a_step

ANSWER = "b3:answer"
LATER = datetime(2025, 6, 2, tzinfo=UTC)

# Rows of a few runs in revision 0001; a table follows those to which it refers.
ROWS_OF_0001: dict[str, list[dict[str, Any]]] = {
    "payloads": [
        {
            "hash": ANSWER,
            "size": 6,
            "media_type": "text/plain",
            "encoding": "identity",
            "data": b"answer",
        }
    ],
    "runs": [
        {
            "id": run_id,
            "flow": "research",
            "status": "running",
            "deadline_s": 60.25,
            "started_at": NOON,
            "engine": "vllm",
            "model": "demo",
            "policy": "calm",
            "random_weights": True,
            "process_id": 2**40,
            "host": "grüße.example",
            "attributes": {"question": "why?", "depth": [1, 2.5, None, {"deep": True}]},
        }
        for run_id in ("run-1", "run-2")
    ],
    "steps": [
        {
            "run_id": "run-1",
            "path": "plan",
            "name": "plan",
            "status": "running",
            "started_s": 0.125,
        }
    ],
    "calls": [
        {
            "run_id": "run-1",
            "node": node,
            "kind": "llm",
            "identity": "demo/plan",
            "step_path": "plan",
            "stage": 0,
            "status": "completed",
            "started_s": 0.25,
            "finished_s": 1.5,
            "output_tokens": 12,
            "output_payload": ANSWER,
        }
        for node in (0, 1)
    ],
    "edges": [{"run_id": "run-1", "parent": 0, "child": 1}],
    "patterns": [
        {
            "id": 2,
            "application": "research",
            "run_id": "run-1",
            "document": b"\x00\xff pattern",
            "codec_version": 1,
            "weight": 1.0,
            "created_at": NOON,
        },
        {
            "id": 5,
            "application": "coding",
            "run_id": None,
            "document": b"",
            "codec_version": 1,
            "weight": 0.5,
            "created_at": LATER,
        },
    ],
}


def at_0001(store_url: str) -> None:
    """Create a database of revision 0001 with rows."""
    config = alembic_config()
    with connected(store_url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        tables = MetaData()
        tables.reflect(connection)
        for name, rows in ROWS_OF_0001.items():
            connection.execute(insert(tables.tables[name]), rows)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT setval('patterns_id_seq', 5)"))


def contents(connection: Connection) -> dict[str, Sequence[Any]]:
    """Table name -> its rows, with the columns of the current revision."""
    tables = MetaData()
    tables.reflect(connection)
    return {
        name: sorted(connection.execute(select(table)).all(), key=repr)
        for name, table in tables.tables.items()
    }


async def test_a_store_of_revision_0001_keeps_every_row(store_url: str) -> None:
    at_0001(store_url)
    async with await open_store(store_url) as store, store.reading() as tx:
        runs = {run.id: run for run in await tx.runs.newest()}
        assert runs == {name: a_full_run(name, started_at=NOON) for name in ("run-1", "run-2")}
        assert list(await tx.journal.of_run("run-1")) == [a_step()]
        ended: dict[str, Any] = {
            "status": Status.COMPLETED,
            "finished_s": 1.5,
            "output_tokens": 12,
            "output_payload": ANSWER,
        }
        assert list(await tx.calls.of_run("run-1")) == [a_call(0, **ended), a_call(1, **ended)]
        assert list(await tx.calls.edges_of_run("run-1")) == [EdgeRecord("run-1", 0, 1)]
        assert (await tx.payloads.describe(ANSWER)).size == 6
        assert list(await tx.patterns.get([2, 5])) == [
            a_pattern(id=2, run_id="run-1", weight=1.0, uses=0.0, used_at=NOON),
            PatternRecord("coding", b"", 1, LATER, weight=0.5, id=5, uses=0.0, used_at=LATER),
        ]
        assert list(await tx.fits.all()) == []
        assert list(await tx.stages.of_run("run-1")) == []
        assert list(await tx.calls.length_samples("research", limit=9)) == []


async def test_a_store_of_revision_0001_can_be_used_after_the_upgrade(store_url: str) -> None:
    """Its patterns are the library until the first fit, and no id is assigned twice."""
    at_0001(store_url)
    async with await open_store(store_url) as store, store.transaction() as tx:
        library = await tx.patterns.of_application("research", in_library=True)
        assert [pattern.id for pattern in library] == [2]
        assert await tx.patterns.add(a_pattern(run_id="run-2")) == 6
        await tx.runs.add(a_run("run-3"))
        await tx.calls.start(a_call(2, kind=CallKind.TOOL), parents=[0, 1])
        await tx.calls.finish("run-1", 2, CallOutcome(Status.COMPLETED, 2.0))
        assert await tx.patterns.count_by_application() == {"coding": 1, "research": 2}


async def test_chunked_payloads_can_be_read_after_their_lists_were_converted(
    store_url: str,
) -> None:
    """Upgrade, downgrade, upgrade: lists of hashes, in the row or in another chunked payload."""
    noise = random.Random(0).randbytes(300_000)
    texts = [noise[:20_000], noise]
    with connected(store_url) as connection:
        at_revision(connection, "0004")
        names = [old_payload(connection, data, list_bytes=512) for data in texts]
        lost = old_payload(connection, noise[:9_000] + b"lost", list_bytes=512)
        its_last = list(split_into_chunks(noise[:9_000] + b"lost"))[-1]
        connection.execute(
            text("DELETE FROM payloads WHERE hash = :name"), {"name": blake3(its_last).hexdigest()}
        )
    for _ in range(2):
        async with await open_store(store_url) as store, store.reading() as tx:
            assert [await tx.payloads.get(name) for name in names] == texts
            with pytest.raises(StoreCorrupt):
                await tx.payloads.get(lost)
        with connected(store_url) as connection:
            at_revision(connection, "0004", command.downgrade)


async def test_the_outcomes_of_runs_that_can_be_resumed_are_numbered_by_their_ends(
    store_url: str,
) -> None:
    a_row = {"place": 0, "effects": "pure", "attempts": 1, "kind": "step"}
    ends = {"slow": 3.0, "fast": 1.0, "middle": 2.0}
    with connected(store_url) as connection:
        at_revision(connection, "0007")
        tables = MetaData()
        tables.reflect(connection)
        for run_id, status in (("run-1", "failed"), ("run-2", "completed")):
            row = ROWS_OF_0001["runs"][0] | {"id": run_id, "status": status, "attempts": 1}
            connection.execute(insert(tables.tables["runs"]), row)
            for name, end_s in ends.items():
                step = {"run_id": run_id, "path": name, "name": name, "started_s": 0.0}
                ended = {"status": "completed", "finished_s": end_s}
                connection.execute(insert(tables.tables["steps"]), step | ended | a_row)
            running = {"run_id": run_id, "path": "x", "name": "x", "started_s": 0.0}
            connection.execute(
                insert(tables.tables["steps"]), running | {"status": "running"} | a_row
            )
    async with await open_store(store_url) as store, store.reading() as tx:
        numbers = {step.path: step.outcome_number for step in await tx.journal.of_run("run-1")}
        assert numbers == {"fast": 0, "middle": 1, "slow": 2, "x": None}
        assert {step.outcome_number for step in await tx.journal.of_run("run-2")} == {None}


def at_revision(
    connection: Connection, revision: str, change: Callable[[Config, str], None] = command.upgrade
) -> None:
    """Upgrade or downgrade a database to a revision."""
    config = alembic_config()
    config.attributes["connection"] = connection
    change(config, revision)


def old_payload(connection: Connection, data: bytes, *, list_bytes: int) -> str:
    """Store bytes as revision 0004 did; a list of hashes over `list_bytes` is a payload itself."""
    hashes = b"".join(
        insert_old(connection, chunk, "zlib", zlib.compress(chunk))
        for chunk in split_into_chunks(data)
    )
    if len(hashes) > list_bytes:
        hashes = bytes.fromhex(old_payload(connection, hashes, list_bytes=list_bytes))
    return insert_old(connection, data, "pieces", hashes).hex()


def insert_old(connection: Connection, data: bytes, encoding: str, stored: bytes) -> bytes:
    digest = blake3(data).digest()
    values = {"hash": digest.hex(), "size": len(data), "encoding": encoding, "data": stored}
    connection.execute(
        text(
            "INSERT INTO payloads (hash, size, media_type, encoding, data)"
            " VALUES (:hash, :size, 'text/plain', :encoding, :data) ON CONFLICT DO NOTHING"
        ),
        values,
    )
    return digest


def test_all_foreign_keys_are_valid_after_an_upgrade(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    at_0001(url)
    with connected(url) as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    with connected(url) as connection:
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
        assert connection.execute(text("PRAGMA integrity_check")).all() == [("ok",)]


async def test_an_upgrade_that_fails_does_not_change_the_rows(
    store_url: str,
) -> None:
    at_0001(store_url)
    with connected(store_url) as connection:
        connection.execute(text("CREATE TABLE stages (mine TEXT)"))  # makes revision 0002 fail
    with connected(store_url) as connection:
        before = contents(connection)
    with pytest.raises(Exception, match="stages"):
        await open_store(store_url)
    with connected(store_url) as connection:
        assert contents(connection) == before
        connection.execute(text("DROP TABLE stages"))
    async with await open_store(store_url):
        pass
    with connected(store_url) as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == HEAD


async def test_patterns_of_runs_that_were_cut_off_are_removed_by_a_downgrade(
    store_url: str,
) -> None:
    """A former version would take them as whole. After an upgrade all others are whole."""
    async with await open_store(store_url) as store, store.transaction() as tx:
        for is_cut_off in (False, True, False):
            await tx.patterns.add(a_pattern(is_cut_off=is_cut_off))
    with connected(store_url) as connection:
        at_revision(connection, "0012", command.downgrade)
    async with await open_store(store_url) as store, store.transaction() as tx:
        found = await tx.patterns.of_application("research")
        assert [(each.id, each.is_cut_off) for each in found] == [(3, False), (1, False)]
        assert await tx.patterns.add(a_pattern()) == 4


def test_a_downgrade_to_revision_0001_keeps_its_rows(store_url: str) -> None:
    at_0001(store_url)
    with connected(store_url) as connection:
        before = contents(connection)
    config = alembic_config()
    with connected(store_url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        command.downgrade(config, "0001")
    with connected(store_url) as connection:
        assert contents(connection) == before
        assert "stages" not in inspect(connection).get_table_names()
