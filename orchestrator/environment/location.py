"""Where the states of workspaces are kept."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from store.database.private_files import data_folder
from store.database.urls import file_of, is_sqlite, normalised, without_password


def environments_folder(store_url: str, given: str | None = None) -> Path:
    """The managed root of a store: `x.environments` for a SQLite file x.db, else in users' data.

    Args:
        given: by the settings, instead.
    Raises:
        StoreUnreachable: the URL is not valid.
    """
    if given is not None:
        return Path(given).expanduser().absolute()
    address = normalised(store_url)
    if is_sqlite(address):
        return file_of(address).with_suffix(".environments")
    name = blake3(without_password(address).encode()).hexdigest()[:16]
    return data_folder() / "environments" / name
