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
    url = without_password(address)
    if given is not None:
        root = Path(given).expanduser().absolute()
    elif store is not None:
        root = store.with_suffix(".environments")
    else:
        root = data_folder() / "environments" / blake3(url.encode()).hexdigest()[:16]
    return EnvironmentsPlace(root, store, url)
