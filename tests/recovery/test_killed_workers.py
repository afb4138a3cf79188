"""Workers are killed and the database's connections cut: each run completes exactly once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.queues import Kills, kill_workers
from tests.unit.store.store_places import DATABASES, blocking, fresh_store_url

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("subprocesses")]

# What a restart of the server does to its clients; the server itself is not this test's.
CUT = """
import sys
from sqlalchemy import create_engine, text

with create_engine(sys.argv[1]).begin() as connection:
    connection.execute(text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%runs%'"
    ))
"""


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store_url(request.param, tmp_path) as url:
        yield url


async def test_each_run_of_killed_workers_completes_exactly_once_and_limits_hold(
    store_url: str, tmp_path: Path
) -> None:
    is_sqlite = store_url.startswith("sqlite")
    kills: Kills = await kill_workers(
        store_url,
        tmp_path,
        num_runs=24,
        num_workers=2,
        kill_every_s=5.0,
        lease_s=2.0,
        run_s=1.0,
        restart=None if is_sqlite else [sys.executable, "-c", CUT, blocking(store_url)],
    )
    assert kills.num_kills >= 1
    assert (kills.num_lost, kills.num_twice) == (0, 0)
    assert (kills.num_out_of_order, kills.num_over_limit) == (0, 0)
