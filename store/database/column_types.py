"""Types of columns: what is stored of times, of text from outside, and of enumerations.

An enumeration is stored as plain text without a CHECK constraint, because SQLite would have to copy
the whole table to allow a new value. SQLAlchemy's Enum type refuses unknown values on write and on
read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import DateTime, Dialect, Enum, Text, TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime. SQLite stores no time zone, so every value is stored in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC. A naive time is a bug: two machines would read it differently."""
        if value is None:
            return None
        assert value.tzinfo is not None, "wall times must be aware"
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC: SQLite drops the zone, PostgreSQL uses the session's zone."""
        if value is None:
            return None
        aware: datetime = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC)


class FreeText(TypeDecorator[str]):
    """Text from outside this program: names, paths, error messages.

    PostgreSQL refuses NUL, and UTF-8 cannot encode lone surrogates. Such characters are replaced,
    because otherwise the whole record would be lost. They are replaced in the operands of
    comparisons as well, so that a lookup with the original text finds the stored one.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace the characters that a database cannot store."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def enum_column(values: type[StrEnum]) -> Enum:
    """A column type for the values of an enumeration, stored as text."""
    return Enum(
        values,
        native_enum=False,
        create_constraint=False,
        length=16,
        values_callable=lambda members: [member.value for member in members],
    )
