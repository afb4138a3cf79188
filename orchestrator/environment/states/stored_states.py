"""States of workspaces: their identity, and how they are stored."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from orchestrator.environment.errors import StateDiscarded, StateLost
from orchestrator.environment.files.blob_store import BlobDamaged
from orchestrator.environment.files.collection_lock import renewed
from orchestrator.environment.files.folder_scan import Keep
from orchestrator.environment.files.manifest import (
    Files,
    Manifest,
    contents_of,
    files_digest,
    from_json,
    to_json,
)
from orchestrator.environment.states.managed_root import ManagedRoot

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Base:
    """The folder that a workspace is a view of, as it was when the workspace began.

    Attributes:
        path: absolute.
        identity: digest of its listing.
        listing: the content under which that listing is stored; "" if it is not.
    """

    path: str
    identity: str
    listing: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs beside a workspace's commands; it is started again in forks.

    Attributes:
        name: by which it is ended or replaced.
        command: of bash.
        ready: a command that succeeds once it serves; None: it is ready when it has started.
        timeout_s: how long that may take.
    """

    name: str
    command: str
    ready: str | None = None
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.name or not self.command:
            raise ValueError(
                f"a service has a name and a command, not {self.name!r}: {self.command!r}"
            )


@dataclass(frozen=True, slots=True)
class State:
    """Files and shell of a workspace at one moment. Equal states have one id.

    Attributes:
        id: BLAKE3 of the base's identity, the files, the shell and the services.
        files: the digest of the changes against the base.
        manifest: the content under which those changes are stored.
        shell: the script that gives a new shell the state of this one.
    """

    id: str
    base: Base
    files: str
    manifest: str
    shell: str = ""
    services: tuple[Service, ...] = ()

    @property
    def files_key(self) -> str:
        """Names the files with their times and their base; see Files."""
        return blake3(f"{self.base.identity} {self.manifest}".encode()).hexdigest()


class States:
    """The states under a managed root: each has a document, which names its contents.

    Args:
        durable: what `add` returns survives a loss of power.
    """

    def __init__(self, root: ManagedRoot, *, durable: bool = False) -> None:
        self._root = root
        self._durable = durable
        self._known: dict[str, tuple[State, Manifest]] = {}
        self._knowing = threading.Lock()  # many files are added in a thread
        self._synced: set[str] = set()
        root.states.mkdir(parents=True, exist_ok=True)

    @property
    def keep(self) -> Keep:
        """Stores the content of a file; see scan_folder."""
        return self._root.blobs.add_file

    def add(
        self,
        base: Base,
        manifest: Manifest,
        shell: str = "",
        services: Sequence[Service] = (),
    ) -> State:
        """Store a state, unless an equal one is stored; the contents of its files are stored."""
        files = files_digest(manifest)
        state = State("", base, files, "", shell, tuple(services))
        state = replace(state, id=_identity(state))
        with suppress(StateLost):
            stored = self.get(state.id)
            self.manifest(stored)
            self._require_synced(stored)
            return stored
        state = replace(state, manifest=self._root.blobs.add(to_json(manifest)))
        self._write(state)
        self._remember(state, manifest)
        return state

    def get(self, state_id: str) -> State:
        """A stored state, which the garbage collection leaves for the next hour.

        Raises:
            StateLost: it is not stored, or its document is damaged.
        """
        if renewed(self._root.path, self.path_of(state_id)) is None:
            self._no_longer_known(state_id)
            raise StateLost(state_id, "it is not stored here")
        known = self._known.get(state_id)
        return self.read(state_id) if known is None else known[0]

    def all(self) -> Iterator[str]:
        """The ids of all stored states."""
        return (name for name in os.listdir(self._root.states) if not name.endswith(".new"))

    def path_of(self, state_id: str) -> Path:
        """Where a state's document lies, if it is stored."""
        return self._root.states / state_id

    def manifest(self, state: State) -> Manifest:
        """The changes of a state against its base; raises StateLost."""
        known = self._known.get(state.id)
        if known is not None:
            return known[1]
        manifest = self._read_manifest(state)
        self._remember(state, manifest)
        return manifest

    def files(self, state: State) -> Files:
        """The same with their key; raises StateLost."""
        return Files(state.files_key, self.manifest(state))

    def read(self, state_id: str) -> State:
        """What a state's document says now; raises StateLost."""
        try:
            fields = json.loads(self.path_of(state_id).read_bytes())
            if fields == _DISCARDED:
                raise StateDiscarded(state_id)
            return _state_of(fields)
        except FileNotFoundError:
            raise StateLost(state_id, "it is not stored here") from None
        except (ValueError, TypeError, KeyError) as error:  # cut off by a loss of power
            raise StateLost(state_id, f"its document is damaged: {error}") from error

    def verify(self, state: State) -> None:
        """Raise StateLost if anything of a state is missing or has other bytes.

        A damaged content is removed, so that it is stored anew if the state is computed again.
        """
        try:
            self.check(state)
        except StateLost as error:
            if isinstance(error.__cause__, BlobDamaged):
                self._root.blobs.remove(error.__cause__.args[0])
                self.forget(state.id)
            raise

    def check(self, state: State, *, verify: Callable[[str], None] | None = None) -> None:
        """Raise StateLost if anything of a state is missing or has other bytes.

        Args:
            verify: raises as BlobStore.verify, which it is by default.
        """
        verify = verify or self._root.blobs.verify
        try:
            manifest = from_json(self._root.blobs.read(state.manifest))
            if files_digest(manifest) != state.files or _identity(state) != state.id:
                raise StateLost(state.id, "its document is damaged")
            for digest in contents_of([manifest]):
                verify(digest)
        except FileNotFoundError as error:
            raise StateLost(state.id, f"{error.filename} is missing") from None
        except (BlobDamaged, ValueError, TypeError) as error:
            raise StateLost(state.id, str(error)) from error

    def forget(self, state_id: str) -> None:
        """Remove a state's document; its contents stay until the garbage collection."""
        self._no_longer_known(state_id)
        self.path_of(state_id).unlink(missing_ok=True)

    def discard(self, state_id: str) -> None:
        """As `forget`, but from now on to ask for it raises StateDiscarded."""
        self._no_longer_known(state_id)
        self._replace(state_id, _DISCARDED)

    def _remember(self, state: State, manifest: Manifest) -> None:
        with self._knowing:
            while len(self._known) >= _KNOWN_STATES:
                self._known.pop(next(iter(self._known)))
            self._known[state.id] = state, manifest

    def _no_longer_known(self, state_id: str) -> None:
        with self._knowing:
            self._known.pop(state_id, None)

    def _read_manifest(self, state: State) -> Manifest:
        try:
            return from_json(self._root.blobs.read(state.manifest))
        except FileNotFoundError:
            raise StateLost(state.id, "the list of its files is missing") from None
        except (BlobDamaged, ValueError, TypeError) as error:
            raise StateLost(state.id, f"the list of its files is damaged: {error}") from error

    def _write(self, state: State) -> None:
        self._replace(state.id, asdict(state))
        self._require_synced(state)

    def _replace(self, state_id: str, fields: dict[str, Any]) -> None:
        new = self._root.states / f"{os.urandom(12).hex()}.new"
        new.write_text(json.dumps(fields))
        if self._durable:
            self._sync()
        new.rename(self.path_of(state_id))

    def _require_synced(self, state: State) -> None:
        """Bring a state to the disk, also one that was stored without that."""
        if self._durable and state.id not in self._synced:
            self._sync()
            self._synced.add(state.id)

    def _sync(self) -> None:
        """Bring all that was written to the disk, with the names of files."""
        descriptor = os.open(self._root.states, os.O_RDONLY)
        try:
            if _libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "the file system could not be synced")
        finally:
            os.close(descriptor)


_KNOWN_STATES = 64
"""Manifests that are kept in memory."""

_DISCARDED: dict[str, Any] = {"discarded": True}
"""The document of a state that was given up."""


def _identity(state: State) -> str:
    parts: list[Any] = [state.base.path, state.base.identity, state.files, state.shell]
    parts += [asdict(service) for service in state.services]
    return blake3(json.dumps(parts).encode()).hexdigest()


def _state_of(fields: dict[str, Any]) -> State:
    base = Base(**fields.pop("base"))
    services = tuple(Service(**each) for each in fields.pop("services"))
    return State(base=base, services=services, **fields)
