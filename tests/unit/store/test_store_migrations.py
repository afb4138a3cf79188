"""The migrations create exactly the tables of the models, and are applied at most once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Table, inspect, text

from store.database.schema import alembic_config, upgrade
from store.database.urls import normalised
from store.errors import StoreNewer
from store.models import Base
from store.session import HEAD, open_store
from tests.unit.store.store_places import blocking, connected
from tests.unit.store.store_samples import a_run


def differences(store_url: str) -> list[Any]:
    with connected(store_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return list(compare_metadata(context, Base.metadata))


def test_the_migrations_create_the_tables_of_the_models(store_url: str) -> None:
    upgrade(normalised(store_url))
    assert differences(store_url) == []


def test_a_difference_between_migrations_and_models_is_detected(store_url: str) -> None:
    upgrade(normalised(store_url))
    with connected(store_url) as connection:
        connection.execute(text("ALTER TABLE steps DROP COLUMN name"))
    assert differences(store_url) != []


def test_constraints_of_the_migrations_have_the_models_names(store_url: str) -> None:
    upgrade(normalised(store_url))
    with connected(store_url) as connection:
        inspector = inspect(connection)
        for table in Base.metadata.sorted_tables:
            names = {key["name"] for key in inspector.get_foreign_keys(table.name)}
            names |= {check["name"] for check in inspector.get_check_constraints(table.name)}
            names |= {unique["name"] for unique in inspector.get_unique_constraints(table.name)}
            names.add(inspector.get_pk_constraint(table.name)["name"])
            assert names == expected_names(table, connection)


def expected_names(table: Table, connection: Connection) -> set[Any]:
    """A table's constraint names; SQLAlchemy gives an AUTOINCREMENT key of SQLite no name."""
    names: set[Any] = {constraint.name for constraint in table.constraints}
    if connection.dialect.name == "sqlite" and table.dialect_options["sqlite"]["autoincrement"]:
        names = names - {table.primary_key.name} | {None}
    return names


def test_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD]


async def test_upgrading_again_changes_nothing(store_url: str) -> None:
    upgrade(normalised(store_url))
    async with await open_store(store_url) as store, store.transaction() as tx:
        await tx.runs.add(a_run())
    upgrade(normalised(store_url))
    async with await open_store(store_url) as store, store.reading() as tx:
        assert await tx.runs.get("run-1") == a_run()


def test_every_migration_can_be_undone(store_url: str) -> None:
    upgrade(normalised(store_url))
    config = alembic_config()
    with connected(store_url) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with connected(store_url) as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    upgrade(normalised(store_url))
    assert differences(store_url) == []


async def test_a_newer_schema_is_refused_and_not_changed(store_url: str) -> None:
    async with await open_store(store_url):
        pass
    with connected(store_url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreNewer, match="9999"):
        await open_store(store_url)
    with connected(store_url) as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


async def test_a_migration_that_fails_does_not_change_the_database(store_url: str) -> None:
    with connected(store_url) as connection:
        connection.execute(text("CREATE TABLE stages (mine TEXT)"))  # makes revision 0002 fail
    with pytest.raises(Exception, match=r"stages|another program's"):  # SQLite refuses before that
        await open_store(store_url)
    with connected(store_url) as connection:
        assert inspect(connection).get_table_names() == ["stages"]


@pytest.mark.usefixtures("subprocesses")
async def test_a_store_at_the_newest_revision_opens_without_alembic(store_url: str) -> None:
    async with await open_store(store_url):
        pass
    program = (
        "import asyncio, sys\n"
        "from store.session import open_store\n"
        "async def main():\n"
        "    async with await open_store(sys.argv[1]):\n"
        "        print('alembic' in sys.modules)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs on this loop
        [sys.executable, "-c", program, store_url], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.usefixtures("subprocesses")
def test_alembic_check_works_on_the_command_line(store_url: str) -> None:
    upgrade(normalised(store_url))
    arguments = ["-c", "store/migrations/alembic.ini", "-x", f"url={blocking(store_url)}", "check"]
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "No new upgrade operations" in done.stdout
