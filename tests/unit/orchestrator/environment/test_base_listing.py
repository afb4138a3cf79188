"""A base seen by stat: what has changed shows, and equal listings have equal identities."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.environment.files.base_listing import BaseListing, ListedEntry, list_base

ENTRIES = st.builds(
    ListedEntry,
    st.sampled_from(["file", "folder"]),
    st.sampled_from([0o644, 0o755]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["", "a", "\udcff"]),
)
LISTINGS = st.builds(
    BaseListing, st.dictionaries(st.sampled_from(["a", "b", "a/b", "\n", "\udcff"]), ENTRIES)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/two\nlines").write_text("text")
    (tmp_path / "d/\udcff").touch()
    (tmp_path / "link").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_all_paths_are_listed_and_links_are_not_followed(folder: Path) -> None:
    listing = list_base(folder)
    assert {path: entry.kind for path, entry in listing.entries.items()} == {
        "d": "folder",
        "d/e": "folder",
        "d/e/two\nlines": "file",
        "d/\udcff": "file",
        "link": "link",
        "pipe": "fifo",
    }
    assert listing.entries["link"].target == "d"
    assert listing.entries["d/e/two\nlines"].size == 4
    assert (listing.left_out, listing.unreadable) == ((), ())


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda folder: (folder / "d/\udcff").write_text("x"), ["d/\udcff"]),
        (lambda folder: os.utime(folder / "d/\udcff", ns=(1, 1)), ["d/\udcff"]),
        (lambda folder: (folder / "d/e").chmod(0o700), ["d/e"]),
        (lambda folder: (folder / "d/e/two\nlines").unlink(), ["d/e/two\nlines"]),
        (lambda folder: (folder / "d/new").touch(), ["d/new"]),
        (lambda folder: (folder / "d/e").rename(folder / "f"),
         ["d/e", "d/e/two\nlines", "f", "f/two\nlines"]),
        (lambda folder: (folder / "link").unlink() or (folder / "link").symlink_to("d/e"),
         ["link"]),
        (lambda folder: (folder / "pipe").unlink() or (folder / "pipe").touch(), ["pipe"]),
        (lambda folder: os.utime(folder / "d", ns=(1, 1)), []),
        (lambda folder: ((folder / "d/x").touch(), (folder / "d/x").unlink()), []),
    ],
)  # fmt: skip
def test_a_change_shows(folder: Path, change, changed: list[str]) -> None:  # type: ignore[no-untyped-def]
    before = list_base(folder)
    change(folder)
    after = list_base(folder)
    assert after.changed_since(before) == before.changed_since(after) == changed
    assert (after.identity == before.identity) == (not changed)


@given(LISTINGS, LISTINGS)
def test_listings_are_equal_if_and_only_if_their_identities_are(
    one: BaseListing, other: BaseListing
) -> None:
    assert (one == other) == (one.identity == other.identity)
    assert (one == other) == (one.changed_since(other) == [])


@given(LISTINGS, st.lists(st.text(), max_size=2).map(tuple))
def test_a_listing_is_read_back_as_it_was(listing: BaseListing, names: tuple[str, ...]) -> None:
    whole = BaseListing(listing.entries, names, names)
    restored = BaseListing.from_bytes(whole.to_bytes())
    assert restored == listing
    assert restored.identity == listing.identity
    assert (restored.left_out, restored.unreadable) == (names, names)


@pytest.mark.parametrize("data", [b"", b"nothing", BaseListing({}).to_bytes()[:-3]])
def test_other_bytes_are_no_listing(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a listing"):
        BaseListing.from_bytes(data)


def test_a_socket_is_named_and_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list_base(folder)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("d/socket")
    after = list_base(folder)
    assert after.left_out == ("d/socket",)
    assert after == before


def test_a_base_that_is_not_there_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_base(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        list_base(tmp_path / "file")
