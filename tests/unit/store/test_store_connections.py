"""Many processes on one new store, and on a server with few connections: they wait, none fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from store.errors import StoreUnreachable
from store.session import open_store
from tests.places import ROOT
from tests.unit.store.store_places import connected, fresh_store_url

NUM_PROCESSES = 12

OPENING = """
import asyncio, sys
import store.database.schema
from store.session import open_store

def counted(url, upgrade=store.database.schema.upgrade):
    print("migrated")
    upgrade(url)

store.database.schema.upgrade = counted

async def main():
    async with await open_store(sys.argv[1]) as opened, opened.reading() as tx:
        print("opened", len(await tx.runs.newest()))

sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_of_many_processes_that_open_a_new_file_one_migrates_it(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, f"sqlite:///{tmp_path / 'runs.db'}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(NUM_PROCESSES)
    ]
    for process in processes:  # all are ready now, or will be
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in processes] == [0] * NUM_PROCESSES
    assert sorted(lines) == ["migrated", *["opened 0"] * NUM_PROCESSES]


@pytest.fixture
async def url_with_one_connection(tmp_path: Path) -> AsyncIterator[str]:
    """A store's URL for a role that may have one connection at a time."""
    with fresh_store_url("postgresql", tmp_path) as url:
        async with await open_store(url):
            pass
        schema = str(make_url(url).query["options"]).rpartition("=")[2]
        role = schema.replace("test", "role")
        with connected(url) as connection:
            connection.execute(text(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1"))
            connection.execute(text(f"GRANT ALL ON SCHEMA {schema} TO {role}"))
            connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}"))
        limited = make_url(url).set(username=role).update_query_dict({"pool_size": "1"})
        yield limited.render_as_string(hide_password=False)
        with connected(url) as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


async def test_a_process_waits_while_the_server_has_no_connection_left(
    url_with_one_connection: str,
) -> None:
    first = await open_store(url_with_one_connection)
    second = asyncio.create_task(open_store(url_with_one_connection))
    await asyncio.wait([second], timeout=0.3)
    assert not second.done()
    await first.close()
    async with await second as opened, opened.reading() as tx:
        assert await tx.runs.newest() == []


@pytest.mark.parametrize("size", ["0", "many", "-1"])
async def test_a_pool_size_that_is_no_number_of_connections_is_refused(size: str) -> None:
    with pytest.raises(StoreUnreachable, match=f"pool_size={size}"):
        await open_store(f"postgresql://user@host/runs?pool_size={size}")
