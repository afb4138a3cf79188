"""Differences of states, as Git takes them."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.durability.values import ValueCodec
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.files.state_view import is_same_entry
from orchestrator.environment.merging.change_set import ChangeSet, changes_between
from orchestrator.environment.merging.differences import Difference, differences
from orchestrator.environment.merging.unified_diff import quoted_name, unified
from tests.unit.orchestrator.environment.merging.merging_samples import (
    FOLDER,
    STORE,
    MemoryBase,
    Tree,
    manifest_of,
    trees,
)

FILE = STORE.file(b"1\n2\n3\n")
NAMES = ("plain", "two words", "two\nlines", "\udcff\udcfe", 'quote"\\', "ünï", "tab\t", "b/c/d")


def between(
    before: Tree, after: Tree, *, base: Tree | None = None, in_deleted: bool = False
) -> list[Difference]:
    base = before if base is None else base
    manifests = manifest_of(before, base), manifest_of(after, base)
    return differences(*manifests, MemoryBase(base), in_deleted=in_deleted)


def patch(before: Tree, after: Tree) -> bytes:
    found = between(before, after, in_deleted=True)
    text = "".join(unified(each, STORE.read) for each in found)
    return text.encode(errors="surrogateescape")


def put(folder: Path, tree: Tree) -> None:
    """Write a tree without its empty folders, which Git does not see."""
    folder.mkdir()
    for path, entry in tree.items():
        if entry.kind == "folder":
            continue
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind == "link":
            place.symlink_to(entry.content)
        else:
            place.write_bytes(STORE.stored[entry.content])
            place.chmod(entry.mode)


def seen(folder: Path) -> dict[str, tuple[str, bytes]]:
    """What Git distinguishes: contents, targets, and whether a file is executable."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*names, *(each for each in folders if (Path(place) / each).is_symlink())):
            file = Path(place) / name
            path = str(file.relative_to(folder))
            if file.is_symlink():
                found[path] = ("link", os.fsencode(os.readlink(file)))
            else:
                kind = "program" if file.stat().st_mode & stat.S_IXUSR else "file"
                found[path] = (kind, file.read_bytes())
    return found


def applied_by_git(folder: Path, before: Tree, after: Tree) -> tuple[object, object]:
    put(folder / "before", before)
    put(folder / "after", after)
    command = ["git", "apply", "--whitespace=nowarn", "--allow-empty", "-"]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)}
    subprocess.run(
        command, cwd=folder / "before", input=patch(before, after), check=True, env=environment
    )
    return seen(folder / "before"), seen(folder / "after")


def file(text: bytes, mode: int = 0o644) -> Entry:
    return STORE.file(text, mode)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"f": file(b"new\n")}),
        ({}, {"f": file(b"new")}),
        ({}, {"f": file(b"")}),
        ({}, {"f": file(b"#!/bin/sh\n", 0o755)}),
        ({}, {"d": FOLDER, "d/e": FOLDER, "d/e/f": file(b"new\n")}),
        ({"f": FILE}, {}),
        ({"f": file(b"")}, {}),
        ({"f": file(b"no newline")}, {}),
        ({"d": FOLDER, "d/f": FILE, "d/e": FOLDER, "d/e/g": FILE, "x": FILE}, {"x": FILE}),
        ({"f": FILE}, {"f": file(b"1\n2\n3")}),
        ({"f": file(b"1\n2\n3")}, {"f": FILE}),
        ({"f": file(b"1\n2\n3")}, {"f": file(b"1\n2\n4")}),
        ({"f": FILE}, {"f": file(b"")}),
        ({"f": file(b"")}, {"f": FILE}),
        ({"f": FILE}, {"f": FILE._replace(mode=0o755)}),
        ({"f": FILE._replace(mode=0o755)}, {"f": file(b"1\n", 0o644)}),
        ({"f": FILE}, {"f": FILE._replace(mode=0o600)}),
        ({"f": file(b"a\r\nb\r\n")}, {"f": file(b"a\r\nc\r\n")}),
        ({"f": file(b"\xff\xfe\n\x0c\r\x85\n")}, {"f": file(b"\xff\xfd\n\x0c\r\x85\n")}),
        ({"f": file(b"\xe2\x80\xa8a\n")}, {"f": file(b"\xe2\x80\xa8b\n")}),
        ({"f": FILE}, {"f": Entry("link", 0o777, "elsewhere")}),
        ({"f": Entry("link", 0o777, "a")}, {"f": Entry("link", 0o777, "b")}),
        ({"f": Entry("link", 0o777, "a")}, {"f": FILE}),
        ({"f": FILE}, {"f": FOLDER, "f/g": FILE}),
        ({"f": FOLDER, "f/g": FILE}, {"f": FILE}),
        (
            {"f": file(b"".join(b"%d\n" % n for n in range(40)))},
            {"f": file(b"".join(b"%d\n" % n for n in range(50) if n not in (0, 9, 10, 30)))},
        ),
    ],
)
def test_git_apply_turns_one_tree_into_the_other(tmp_path: Path, before: Tree, after: Tree) -> None:
    found, expected = applied_by_git(tmp_path, before, after)
    assert found == expected


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("name", NAMES)
def test_git_apply_finds_files_with_any_name(tmp_path: Path, name: str) -> None:
    folders = {"b": FOLDER, "b/c": FOLDER} if "/" in name else {}
    changes: list[Tree] = [
        {}, {name: FILE}, {name: file(b"1\n")}, {name: file(b"1\n", 0o755)}, {name: file(b"")}, {}
    ]  # fmt: skip
    for number, (before, after) in enumerate(itertools.pairwise(changes)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, expected = applied_by_git(folder, folders | before, folders | after)
        assert found == expected


@pytest.mark.usefixtures("subprocesses")
def test_names_are_quoted_as_git_does(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    command = ["git", "ls-files", "--others"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(listed.stdout.splitlines()) == sorted(map(quoted_name, NAMES))


@pytest.mark.usefixtures("subprocesses")
@settings(deadline=None)
@given(st.data())
def test_git_apply_takes_the_differences_of_random_trees(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    def is_known(entry: Entry) -> bool:
        is_binary = b"\0" in STORE.stored.get(entry.content, b"")
        return entry.kind != "fifo" and not (entry.kind == "file" and is_binary)

    base = data.draw(trees())
    before, after = (
        {path: entry for path, entry in tree.items() if is_known(entry)}
        for tree in (base, data.draw(trees(near=base)))
    )
    found, expected = applied_by_git(tmp_path_factory.mktemp("patch"), before, after)
    assert found == expected


@settings(deadline=None)
@given(st.data())
def test_all_that_differs_is_listed_once_and_nothing_else(data: st.DataObject) -> None:
    base = data.draw(trees())
    before, after = data.draw(trees(near=base)), data.draw(trees(near=base))
    found = between(before, after, base=base, in_deleted=True)
    differing = [
        path
        for path in sorted(before.keys() | after.keys())
        if not is_same_entry(before.get(path), after.get(path))
    ]
    assert [each.path for each in found] == differing
    for each in found:
        assert (each.before, each.after) == (before.get(each.path), after.get(each.path))


def test_a_deleted_folder_is_one_difference_and_an_added_one_is_listed_with_its_content() -> None:
    tree = {"d": FOLDER, "d/e": FOLDER, "d/e/f": FILE}
    assert [(each.path, each.kind) for each in between(tree, {})] == [("d", "deleted")]
    assert [(each.path, each.kind) for each in between({}, tree)] == [
        ("d", "added"),
        ("d/e", "added"),
        ("d/e/f", "added"),
    ]
    restored = between({}, tree, base=tree)  # as after a rewind: no manifest lists them
    assert [each.path for each in restored] == ["d", "d/e", "d/e/f"]


def test_deep_trees_are_compared() -> None:
    deep = "/".join(["d"] * 300)
    tree = {"/".join(["d"] * depth): FOLDER for depth in range(1, 301)} | {f"{deep}/f": FILE}
    assert [each.path for each in between(tree, tree | {f"{deep}/f": file(b"")})] == [f"{deep}/f"]
    assert len(between({}, tree)) == len(between(tree, {}, in_deleted=True)) == 301


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (FILE, FILE._replace(mode=0o600), "mode"),
        (FILE, file(b"other", 0o600), "changed"),
        (FILE, Entry("link", 0o777, "f"), "kind"),
        (FILE, FOLDER, "kind"),
        (FOLDER, Entry("folder", 0o700), "mode"),
    ],
)
def test_a_difference_is_of_the_kind(before: Entry, after: Entry, kind: str) -> None:
    assert between({"f": before}, {"f": after}) == [Difference("f", kind, before, after)]  # type: ignore[arg-type]
    assert between({"f": before}, {"f": before._replace(mtime_ns=9)}) == []


def test_of_binary_and_very_large_files_the_text_says_that_they_differ() -> None:
    binary = Difference("f", "changed", file(b"\0a"), file(b"\0b"))
    assert unified(binary, STORE.read) == "diff --git a/f b/f\nBinary files a/f and b/f differ\n"
    large = Difference("f", "added", None, Entry("file", 0o644, "not read", 5 << 20))
    assert "Binary files /dev/null and b/f differ\n" in unified(large, STORE.read)


def test_folders_and_fifos_are_lines_that_are_no_patch() -> None:
    assert unified(Difference("d", "added", None, FOLDER), STORE.read) == "folder d: added\n"
    mode = Difference("a\nb", "mode", FOLDER, Entry("folder", 0o700))
    assert unified(mode, STORE.read) == 'folder "a\\nb": mode 0755 -> 0700\n'
    assert unified(Difference("p", "deleted", Entry("fifo", 0o600), None), STORE.read) == (
        "fifo p: deleted\n"
    )


def change_set(before: Tree, after: Tree, limit: int = 10_000) -> ChangeSet:
    return changes_between(
        between(before, after),
        base="/repo",
        base_identity="1" * 64,
        read=STORE.read,
        text_of=between(before, after, in_deleted=True),
        text_limit=limit,
    )


def test_a_change_set_is_recorded_and_read_back_as_it_was() -> None:
    before = {"d": FOLDER, "d/f": FILE, "\udcff": FILE}
    after = {"\udcff": file(b"\xff\n"), "new": FILE}
    changes = change_set(before, after)
    codec = ValueCodec("step changes", ChangeSet)
    assert codec.round_trip(changes)[1] == codec.load(codec.dump(changes)) == changes
    assert changes.paths == ("d", "new", "\udcff")
    assert changes.counts == {"added": 1, "changed": 1, "deleted": 1}
    assert str(changes) == "1 added, 1 changed, 1 deleted"
    assert "deleted file mode 100644\n--- a/d/f\n" in changes.text
    assert changes


def test_a_change_set_without_changes_is_false_and_says_so() -> None:
    nothing = change_set({"f": FILE}, {"f": FILE})
    assert not nothing
    assert (str(nothing), nothing.text) == ("no changes", "")


def test_a_text_that_is_too_long_names_what_it_leaves_out() -> None:
    after = {f"f{number:02}": file(b"x\n" * 500) for number in range(30)} | {"small": file(b"y\n")}
    changes = change_set({}, after, limit=2000)
    assert changes.num_cut == 29
    assert len(changes.changes) == 31
    assert changes.text.count("diff --git") == 2  # one of the long ones, and the small one
    assert changes.text.endswith("f20 and 9 more)\n")
    assert "(not shown, as the text would be too long: f01, f02," in changes.text
