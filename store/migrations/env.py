"""Run by Alembic: on the connection that the store hands over, or on a developer's URL."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, Enum, NullPool, create_engine

from store.models import Base, FreeText, UtcDateTime


def render_type(kind: str, item: Any, _autogen: AutogenContext) -> str | Literal[False]:
    """Write a column's type into a migration as plain SQLAlchemy: models change, history not."""
    if kind != "type":
        return False
    if isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if isinstance(item, FreeText):
        return "sa.Text()"
    if isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    return False  # as Alembic would


def migrate(connection: Connection) -> None:
    """Run the migrations in the connection's transaction."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_item=render_type,
        # SQLite alters a table by copying it.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Take the store's connection; a developer's command line gives `-x url=...` instead."""
    handed_over = context.config.attributes.get("connection")
    if handed_over is not None:
        migrate(handed_over)
        return
    url = context.get_x_argument(as_dictionary=True)["url"]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        migrate(connection)


main()
