"""The base as it lies on disk: what a state is compared with, and what merges read from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blake3 import blake3

from orchestrator.environment.errors import BaseChanged
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.files.state_view import StateView
from orchestrator.environment.merging.contents import reader
from orchestrator.environment.merging.merging import merge_manifests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base/d/e").mkdir(parents=True)
    (tmp_path / "base/d/f").write_bytes(b"1\n2\n3\n")
    (tmp_path / "base/link").symlink_to("d")
    os.utime(tmp_path / "base/d/f", ns=(5, 5))
    return tmp_path


def digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def test_an_entry_says_what_is_there_and_links_are_not_followed(folder: Path) -> None:
    base = BaseFolder(folder / "base")
    (folder / "base/d/f").chmod(0o640)
    assert base.entry("d/f") == Entry("file", 0o640, digest(b"1\n2\n3\n"), 6, 5)
    link = base.entry("link")
    assert link is not None
    assert link[:4] == ("link", 0o777, "d", 0)
    inner = base.entry("d")
    assert inner is not None
    assert inner.kind == "folder"
    for path in ("link/f", "missing", "d/f/x", "missing/x"):
        assert base.entry(path) is None
    assert base.read("d/f") == b"1\n2\n3\n"
    with pytest.raises(OSError, match="symbolic links"):
        base.read("link")


def test_a_state_shows_its_changes_above_the_base(folder: Path) -> None:
    new = Entry("file", 0o644, "x", 1)
    manifest = {"d/f": Entry("gone"), "d/new": new, "link": Entry("folder", 0o755), "a": new}
    view = StateView(manifest, BaseFolder(folder / "base"))
    assert view.names("") == {"a", "d", "link"}
    assert view.names("d") == {"e", "new"}
    assert view.names("link") == view.names("missing") == set()
    assert view.listed_names("d") == {"f", "new"}
    assert [view.kind(path) for path in ("", "d", "d/e", "d/f", "d/new", "a/x")] == [
        "folder", "folder", "folder", None, "file", None
    ]  # fmt: skip
    assert view.part("d") == {"d/f": Entry("gone"), "d/new": new}
    deleted = StateView({"d": Entry("gone")}, BaseFolder(folder / "base"))
    assert deleted.is_hidden("d/f")
    assert (deleted.entry("d/f"), deleted.entry("d"), deleted.names("d")) == (None, None, set())


def test_a_merge_reads_the_ancestor_from_the_base_and_notices_if_it_has_changed(
    folder: Path,
) -> None:
    blobs, base = BlobStore(folder / "root"), BaseFolder(folder / "base")
    ours, theirs = b"one\n2\n3\n", b"1\n2\nthree\n"
    sides = [{"d/f": Entry("file", 0o644, blobs.add(data), len(data))} for data in (ours, theirs)]
    (folder / "base/d/f").chmod(0o644)

    def merged() -> Entry:
        read = reader(blobs, base, str(folder / "base"))
        result = merge_manifests({}, *sides, base=base, read=read, keep=blobs.add)
        assert result.conflicts == ()
        return result.manifest["d/f"]

    assert blobs.read(merged().content) == b"one\n2\nthree\n"
    read = reader(blobs, base, str(folder / "base"))
    entry = base.entry("d/f")
    assert entry is not None
    for change in (lambda: (folder / "base/d/f").write_bytes(b"by its user"),
                   (folder / "base/d/f").unlink):  # fmt: skip
        change()
        with pytest.raises(BaseChanged) as raised:
            read("d/f", entry)
        assert raised.value.paths == ("d/f",)
