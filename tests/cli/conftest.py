"""Isolates every test: own folders, own store, fixed terminal width, no settings of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ORCHESTRATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ORCHESTRATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def new_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the default store, which does not exist; no other store is named."""
    monkeypatch.delenv("ORCHESTRATE_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "orchestrate" / "orchestrate.db"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "deadlines.md").write_text(
        "# Deadlines\n\nA deadline is divided over the stages of a run.\n\n"
        "Each stage has a sub-deadline of its own, which its calls share.\n"
    )
    return folder
