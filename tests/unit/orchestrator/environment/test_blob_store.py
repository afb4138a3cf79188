"""Contents of files are stored once, whole, and never changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.environment.files.blob_store import BlobDamaged, BlobStore, digest_of_file

BIG = (1 << 20) + 12_345


def stored(store: BlobStore, path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return store.add_file(descriptor, path.stat().st_size)
    finally:
        os.close(descriptor)


def copied(store: BlobStore, digest: str, path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        store.copy_to(digest, descriptor)
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, BIG])
def test_a_file_comes_back_as_it_was(tmp_path: Path, size: int) -> None:
    store, data = BlobStore(tmp_path / "store"), os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    digest = stored(store, tmp_path / "file")
    assert digest == store.add(data)
    assert store.read(digest) == data
    assert copied(store, digest, tmp_path / "copy") == data
    assert list(store.all()) == [digest]
    store.verify(digest)


def test_holes_stay_holes(tmp_path: Path) -> None:
    store, file = BlobStore(tmp_path / "store"), tmp_path / "sparse"
    with file.open("wb") as opened:
        opened.seek(50 << 20)
        opened.write(b"data")
        opened.truncate(100 << 20)
    digest = stored(store, file)
    assert store.path_of(digest).stat().st_blocks * 512 < 1 << 20
    copied(store, digest, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_blocks * 512 < 1 << 20
    assert (tmp_path / "copy").stat().st_size == 100 << 20
    descriptor = os.open(tmp_path / "copy", os.O_RDONLY)
    assert digest_of_file(descriptor) == digest
    os.close(descriptor)


def test_a_damaged_content_is_named(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.add(b"whole")
    path = store.path_of(digest)
    path.chmod(0o600)
    path.write_bytes(b"other")
    for look in (store.read, store.verify):
        with pytest.raises(BlobDamaged, match=digest):
            look(digest)


def test_what_is_removed_is_gone(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.add(b"some bytes")
    assert store.remove(digest) > 0
    assert store.remove(digest) == 0
    assert not store.has(digest)
    with pytest.raises(FileNotFoundError):
        store.read(digest)


def test_nothing_unfinished_is_left_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="no space"):
        store.add(b"data")
    assert list((tmp_path / "new").iterdir()) == []
    assert list(store.all()) == []
