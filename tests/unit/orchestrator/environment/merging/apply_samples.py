"""Folders on disk, for tests of applying; what is run as an ordinary user."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import scan_folder
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.apply_plan import ApplyPlan
from orchestrator.environment.merging.apply_steps import OnStep
from orchestrator.environment.merging.applying import Applied, Applier
from orchestrator.environment.sandbox import linux
from tests.places import ROOT
from tests.unit.orchestrator.environment.merging.merging_samples import (
    STORE,
    Tree,
    contents,
    manifest_of,
)


class Seen(NamedTuple):
    """One path of a folder on disk."""

    kind: int
    mode: int
    mtime_ns: int
    content: bytes


@dataclass
class Desk:
    """A base on disk, the managed root, and the blob store."""

    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def blobs(self) -> BlobStore:
        return BlobStore(self.root)

    def applier(self, on_step: OnStep = lambda *_: None) -> Applier:
        return Applier(self.root, self.blobs, None, on_step=on_step, durable=False)

    def put(self, tree: Tree) -> BaseListing:
        """Make the base hold a tree; returns its listing."""
        remove_folder(self.base)
        self.base.mkdir()
        for path in sorted(tree):
            put_entry(self.base, path, tree[path])
        for path in sorted(tree, reverse=True):
            set_attributes(self.base / path, tree[path])
        return list_base(self.base)

    def plan(self, before: Tree, after: Tree, recorded: BaseListing, **options: bool) -> ApplyPlan:
        """The plan that turns the base, which holds `before`, into `after`."""
        for entry in after.values():
            if entry.kind == "file":
                self.blobs.add(STORE.stored[entry.content])
        return self.applier().plan(self.base, manifest_of(after, before), recorded, **options)

    def changed(self, before: Tree, after: Tree) -> Applied:
        """Put a tree, and apply another one onto it."""
        return self.applier().apply(self.plan(before, after, self.put(before)))

    def holds(self, tree: Tree) -> bool:
        """Whether the base holds exactly this tree; times of folders do not count."""
        found = self.scanned()
        assert contents(found) == contents(tree)
        return all(
            found[path].mtime_ns == entry.mtime_ns
            for path, entry in tree.items()
            if entry.kind != "folder"
        )

    def scanned(self) -> Mapping[str, Entry]:
        """All that the base holds."""
        reader = FolderReader(str(self.base))
        return scan_folder(
            reader, keep=lambda file, size: STORE.keep(os.pread(file, size, 0))
        ).entries


def put_entry(base: Path, path: str, entry: Entry) -> None:
    place = base / path
    if entry.kind == "folder":
        place.mkdir()
    elif entry.kind == "link":
        place.symlink_to(entry.content)
    elif entry.kind == "fifo":
        os.mkfifo(place)
    else:
        place.write_bytes(STORE.stored[entry.content])


def set_attributes(place: Path, entry: Entry) -> None:
    times = (entry.mtime_ns, entry.mtime_ns)
    os.utime(place, ns=times, follow_symlinks=False)
    if entry.kind != "link":
        place.chmod(entry.mode)


def snapshot(folder: Path) -> dict[str, Seen]:
    """All of a folder, with all times; of what may not be read the content is missing."""
    found = {}
    for place in [folder, *sorted(folder.rglob("*"))]:
        status = place.lstat()
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(place))
        elif stat.S_ISREG(status.st_mode) and os.access(place, os.R_OK):
            content = place.read_bytes()
        found[str(place.relative_to(folder))] = Seen(
            stat.S_IFMT(status.st_mode),
            stat.S_IMODE(status.st_mode),
            status.st_mtime_ns,
            content,
        )
    return found


def as_ordinary_user(function: str, folder: Path) -> None:
    """Run a function of the tests with a folder, in a process that has no privileges of root."""
    module = "tests.unit.orchestrator.environment.merging.apply_samples"
    code = f"from {module} import without_privileges; without_privileges({function!r})"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def without_privileges(function: str) -> None:
    """Called in the process that `as_ordinary_user` starts."""
    module_name, name = function.rsplit(":", 1)
    __import__(module_name)
    if os.geteuid() == 0:
        linux.drop_privileges()
    getattr(sys.modules[module_name], name)(Path(sys.argv[1]))
