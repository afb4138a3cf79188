"""Run by Alembic: on the store's connection, or on the URL of a developer's command line."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, Enum, NullPool, create_engine

from store.database.column_types import FreeText, UtcDateTime
from store.models import Base


def render_type(kind: str, item: Any, _autogen: AutogenContext) -> str | Literal[False]:
    """A column's type as plain SQLAlchemy: models may change, released migrations may not."""
    if kind != "type":
        return False
    if isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if isinstance(item, FreeText):
        return "sa.Text()"
    if isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    return False  # Alembic's default


def migrate(connection: Connection) -> None:
    """Run the migrations in the connection's transaction."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_item=render_type,
        # SQLite cannot alter most of a table in place: a batch copies it.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Migrate on the store's connection, or, from the command line, on `-x url=...`."""
    store_connection = context.config.attributes.get("connection")
    if store_connection is not None:
        migrate(store_connection)
        return
    url = context.get_x_argument(as_dictionary=True)["url"]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        migrate(connection)


main()
