"""The folder of one open workspace."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.states.managed_root import ManagedRoot

_LONGEST_END_S = 5.0
"""How long a sandbox may take to end."""


class LiveFolder:
    """A new folder for an open workspace.

    It is locked until it is closed or this process ends: the garbage collection leaves what is
    locked, and the layers and states that it names.

    Attributes:
        root: in which it lies.
        path: where it is.
    """

    def __init__(self, root: ManagedRoot) -> None:
        self.root = root
        self.path = root.live / uuid.uuid4().hex
        with root.collection_stopped():  # without its lock it would be taken for a dead one
            self.path.mkdir(parents=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._layers, self._states = self._opened("layers"), self._opened("states")
        self._named: set[str] = set()

    def use_layers(self, layers: Iterable[str]) -> None:
        """Name layers that are in use, beside those named before."""
        self._add(self._layers, layers)

    def use_states(self, states: Iterable[str]) -> None:
        """Name states that may be shown again, beside those named before."""
        self._add(self._states, states)

    def close(self) -> None:
        """Remove it; idempotent. Waits for programs that are being ended and still write in it."""
        if self._lock >= 0:
            for each in self.path.iterdir():
                if each.is_dir():
                    _remove_patiently(each)
            with (
                self.root.collection_stopped()
            ):  # without its lock it would be taken for a dead one
                remove_folder(self.path)
            for descriptor in (self._layers, self._states, self._lock):
                os.close(descriptor)
            self._lock = -1

    def _opened(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path / name, flags, 0o600)

    def _add(self, descriptor: int, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        os.write(descriptor, "".join(f"{name}\n" for name in new).encode())


def _remove_patiently(folder: Path) -> None:
    until_s = time.monotonic() + _LONGEST_END_S
    while True:
        try:
            remove_folder(folder)
            return
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.005)


def named_in(folder: Path, name: str) -> Iterator[str]:
    """What an open workspace's folder names in use: "layers" or "states"."""
    try:
        yield from (folder / name).read_text().split()
    except FileNotFoundError:
        return


def is_open(folder: Path) -> bool:
    """Whether the folder's workspace is open, in this process or another one."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
