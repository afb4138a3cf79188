"""States that survive a loss of power: on the disk is what was synced, nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.states import stored_states
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import Base, State, States

BASE = Base("/base", "identity")


class Disk:
    """A disk that has what lay in a folder when it was synced last."""

    def __init__(self, root: Path, disk: Path) -> None:
        self._root = root
        self._disk = disk
        self.num_syncs = 0

    def syncfs(self, _: int) -> int:
        self.num_syncs += 1
        shutil.rmtree(self._disk, ignore_errors=True)
        shutil.copytree(self._root, self._disk)
        return 0


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "root", tmp_path / "disk")
    monkeypatch.setattr(stored_states, "_libc", disk)
    return disk


def added(states: States, text: str) -> State:
    root = ManagedRoot(states._root.path)
    entry = Entry("file", 0o644, root.blobs.add(text.encode()), len(text))
    return states.add(BASE, {text: entry}, "cd /\n")


def require_on_disk(tmp_path: Path, state: State) -> None:
    on_disk = States(ManagedRoot(tmp_path / "disk"))
    on_disk.verify(on_disk.get(state.id))


def test_a_durable_state_is_on_the_disk_when_it_is_returned(tmp_path: Path, disk: Disk) -> None:
    durable = States(ManagedRoot(tmp_path / "root"), durable=True)
    for text in ("one", "two"):
        require_on_disk(tmp_path, added(durable, text))


def test_contents_are_on_the_disk_before_the_state_has_its_name(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may write a name before the content of another file."""
    rename, durable = Path.rename, States(ManagedRoot(tmp_path / "root"), durable=True)

    def checked_rename(self: Path, target: Path) -> Path:
        if target.parent.name == "states":
            synced = {each.name for each in (tmp_path / "disk" / "blobs").rglob("*")}
            stored = {each.name for each in (tmp_path / "root" / "blobs").rglob("*")}
            assert synced == stored
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", checked_rename)
    added(durable, "one")
    assert disk.num_syncs == 2


def test_an_equal_state_that_was_stored_without_syncing_is_synced(
    tmp_path: Path, disk: Disk
) -> None:
    root = ManagedRoot(tmp_path / "root")
    state = added(States(root), "one")
    assert disk.num_syncs == 0
    durable = States(root, durable=True)
    assert added(durable, "one") == state
    require_on_disk(tmp_path, state)
    added(durable, "one")
    assert disk.num_syncs == 1, "once is enough"
