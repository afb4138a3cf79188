"""Number payloads: chunked ones refer to chunks by row id, which is shorter than a hash.

In this module a chunk is called a piece, and its row id a number, as in the stored encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

REFERENCES = (
    ("runs", "input_payload"),
    ("runs", "result_payload"),
    ("steps", "result_payload"),
    ("calls", "prompt_payload"),
    ("calls", "output_payload"),
)
HASH_BYTES = 32
NUMBER_BYTES = 8
COLUMNS = "hash, size, media_type, encoding, data"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        rebuild(
            sa.Column("id", sa.Integer(), nullable=False),
            sa.PrimaryKeyConstraint("id", name="pk_payloads"),
            sa.UniqueConstraint("hash", name="uq_payloads_hash"),
        )
    else:
        without_references(number)
    rewrite_lists(hashes_listed, numbers)


def downgrade() -> None:
    rewrite_lists(hashes_numbered, lambda hashes: b"".join(map(bytes.fromhex, hashes)))
    if op.get_bind().dialect.name == "sqlite":
        rebuild(sa.PrimaryKeyConstraint("hash", name="pk_payloads"))
    else:
        without_references(unnumber)


def rebuild(*parts: sa.schema.SchemaItem) -> None:
    """Copy the table, because SQLite cannot change a primary key; references are by table name."""
    op.create_table(
        "payloads_new",
        *parts,
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("encoding", sa.String(length=16), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )
    op.execute(
        f"INSERT INTO payloads_new ({COLUMNS}) SELECT {COLUMNS} FROM payloads"  # noqa: S608
    )
    op.drop_table("payloads")
    op.rename_table("payloads_new", "payloads")


def without_references(work: Callable[[], None]) -> None:
    """Do the work without foreign keys: PostgreSQL cannot drop a key that one refers to."""
    for table, column in REFERENCES:
        op.drop_constraint(f"fk_{table}_{column}_payloads", table, type_="foreignkey")
    work()
    for table, column in REFERENCES:
        op.create_foreign_key(
            f"fk_{table}_{column}_payloads", table, "payloads", [column], ["hash"]
        )


def number() -> None:
    op.execute("ALTER TABLE payloads ADD COLUMN id BIGSERIAL NOT NULL")
    op.drop_constraint("pk_payloads", "payloads", type_="primary")
    op.create_primary_key("pk_payloads", "payloads", ["id"])
    op.create_unique_constraint("uq_payloads_hash", "payloads", ["hash"])


def unnumber() -> None:
    op.drop_constraint("pk_payloads", "payloads", type_="primary")
    op.drop_constraint("uq_payloads_hash", "payloads", type_="unique")
    op.drop_column("payloads", "id")
    op.create_primary_key("pk_payloads", "payloads", ["hash"])


def rewrite_lists(read: Callable[[bytes], list[str]], write: Callable[[list[str]], bytes]) -> None:
    """Convert each list of pieces; a damaged list is not changed."""
    lists = sa.text("SELECT hash, data FROM payloads WHERE encoding = 'pieces'")
    change = sa.text("UPDATE payloads SET data = :data WHERE hash = :hash")
    written = []
    for row in op.get_bind().execute(lists).all():
        try:
            written.append({"hash": row.hash, "data": write(read(row.data))})
        except (LookupError, ValueError, zlib.error):
            continue
    for values in written:  # after all reads: a list may be stored in a payload that has a list
        op.get_bind().execute(change, values)


def hashes_listed(stored: bytes) -> list[str]:
    """Hashes of the pieces in a list, or in the payload to which a single hash refers."""
    listed = content(stored.hex()) if len(stored) == HASH_BYTES else stored
    return [listed[at : at + HASH_BYTES].hex() for at in range(0, len(listed), HASH_BYTES)]


def content(name: str) -> bytes:
    """The bytes of a payload."""
    query = sa.text("SELECT encoding, data FROM payloads WHERE hash = :hash")
    row = op.get_bind().execute(query, {"hash": name}).one_or_none()
    if row is None:
        raise LookupError(name)
    if row.encoding == "pieces":
        return b"".join(map(content, hashes_listed(row.data)))
    return zlib.decompress(row.data) if row.encoding == "zlib" else bytes(row.data)


def numbers(hashes: list[str]) -> bytes:
    """The stored list of numbers: differences of successive ones, compressed."""
    query = sa.text("SELECT id FROM payloads WHERE hash = :hash")
    steps, before = [], 0
    for name in hashes:
        found = op.get_bind().execute(query, {"hash": name}).scalar()
        if found is None:
            raise LookupError(name)
        steps.append((found - before).to_bytes(NUMBER_BYTES, "little", signed=True))
        before = found
    return zlib.compress(b"".join(steps))


def hashes_numbered(stored: bytes) -> list[str]:
    """The inverse of `numbers`."""
    query = sa.text("SELECT hash FROM payloads WHERE id = :id")
    steps, at, hashes = zlib.decompress(stored), 0, []
    for start in range(0, len(steps), NUMBER_BYTES):
        at += int.from_bytes(steps[start : start + NUMBER_BYTES], "little", signed=True)
        name = op.get_bind().execute(query, {"id": at}).scalar()
        if name is None:
            raise LookupError(at)
        hashes.append(name)
    return hashes
