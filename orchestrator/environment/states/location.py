"""Where the states of workspaces are kept."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from orchestrator.execution.context import EnvironmentsPlace
from store.database.private_files import data_folder
from store.database.urls import file_of, is_sqlite, normalised, without_password


def environments_place(store_url: str, given: str | None = None) -> EnvironmentsPlace:
    """The managed root of a store: `x.environments` for a SQLite file x.db, else in users' data.

    Args:
        given: by the settings, instead.
    Raises:
        StoreUnreachable: the URL is not valid.
    """
    address = normalised(store_url)
    store = file_of(address) if is_sqlite(address) else None
    if given is not None:
        return EnvironmentsPlace(Path(given).expanduser().absolute(), store)
    if store is not None:
        return EnvironmentsPlace(store.with_suffix(".environments"), store)
    name = blake3(without_password(address).encode()).hexdigest()[:16]
    return EnvironmentsPlace(data_folder() / "environments" / name, None)
