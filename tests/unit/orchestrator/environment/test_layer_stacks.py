"""The layers of a manifest, read as an overlay shows them, are the tree that it stands for."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.environment.files import layer_stacks
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Entry, Files, files_digest, parents_of


class Node(NamedTuple):
    """A path of a tree; folders have no time of their own."""

    kind: str
    mode: int
    content: str = ""
    mtime_ns: int = 0


Tree = Mapping[str, Node]

times = st.integers(1, 3).map(lambda second: second * 1_000_000_000)
nodes = st.one_of(
    st.builds(Node, st.just("file"), st.sampled_from([0o644, 0o755]), st.sampled_from("xy"), times),
    st.builds(Node, st.just("link"), st.just(0o777), st.sampled_from(["a", "../b"]), times),
    st.sampled_from([0o755, 0o700]).map(lambda mode: Node("folder", mode)),
    st.just(Node("fifo", 0o600)),
)
paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
edits = st.lists(st.tuples(paths, st.none() | nodes), min_size=1, max_size=3)


def edited(tree: Tree, changes: list[tuple[str, Node | None]]) -> dict[str, Node]:
    """A tree with other things at some paths, in place of what was there and below."""
    found = dict(tree)
    for path, node in changes:
        for each in [*parents_of(path), path]:
            if each == path or found.get(each, Node("", 0)).kind != "folder":
                for below in [at for at in found if at == each or at.startswith(f"{each}/")]:
                    keeps = each == path and node is not None and node.kind == "folder"
                    if not (keeps and found[each].kind == "folder"):
                        found.pop(below)
                if each != path:
                    found[each] = Node("folder", 0o755)
        if node is not None:
            found[path] = node
    return found


def write(tree: Tree, folder: Path) -> None:
    for path in sorted(tree):
        node, place = tree[path], folder / path
        if node.kind == "folder":
            place.mkdir()
            continue
        if node.kind == "link":
            place.symlink_to(node.content)
        elif node.kind == "fifo":
            os.mkfifo(place)
        else:
            place.write_text(node.content)
        if node.kind != "link":
            place.chmod(node.mode)
        if node.mtime_ns:
            os.utime(place, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
    for path in sorted(tree, reverse=True):
        if tree[path].kind == "folder":
            (folder / path).chmod(tree[path].mode)


def manifest_of(base: Tree, tree: Tree, blobs: BlobStore) -> dict[str, Entry]:
    """The canonical manifest of a tree."""
    found = {}
    for path, node in tree.items():
        if path not in base or base[path][:3] != node[:3]:
            content = blobs.add(node.content.encode()) if node.kind == "file" else node.content
            size = len(node.content) if node.kind == "file" else 0
            found[path] = Entry(node.kind, node.mode, content, size, node.mtime_ns)  # type: ignore[arg-type]
    for path in base:
        parent = path.rpartition("/")[0]
        if path not in tree and (not parent or (parent in tree and tree[parent].kind == "folder")):
            found[path] = Entry("gone")
    return found


def overlaid(layers: list[Path]) -> dict[str, Node]:
    """What an overlay shows of folders, the uppermost first."""
    found: dict[str, Node] = {}

    def look(path: str, places: list[Path]) -> None:
        names = {name for place in places for name in os.listdir(place)}
        for name in sorted(names):
            inner, at = f"{path}/{name}" if path else name, []
            for place in places:
                if not os.path.lexists(place / name):
                    continue
                is_folder = stat.S_ISDIR(os.lstat(place / name).st_mode)
                if not is_folder and at:
                    break  # below a folder nothing else is seen
                at.append(place / name)
                if not is_folder:
                    break
            seen = node_at(at[0])
            if seen.kind != "gone":
                found[inner] = seen
            if seen.kind == "folder":
                look(inner, at)

    look("", layers)
    return found


def node_at(place: Path) -> Node:
    status = os.lstat(place)
    mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if stat.S_ISCHR(status.st_mode):
        return Node("gone", 0)
    if stat.S_ISDIR(status.st_mode):
        return Node("folder", mode)
    if stat.S_ISLNK(status.st_mode):
        return Node("link", mode, os.readlink(place), mtime_ns)
    if stat.S_ISFIFO(status.st_mode):
        return Node("fifo", mode)
    return Node("file", mode, place.read_text(), mtime_ns)


def shown_by(base: Tree, tree: Tree) -> dict[str, Node]:
    """A tree with the times that it has above a base: what is as there, has those."""
    return {
        path: base[path] if path in base and base[path][:3] == node[:3] else node
        for path, node in tree.items()
    }


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        remove_folder(folder)


@pytest.mark.slow
@settings(deadline=None)
@given(start=edits, steps=st.lists(st.tuples(edits, st.integers(0, 9)), min_size=1, max_size=6))
def test_layers_show_the_tree_of_the_manifest_whatever_lies_below(
    start: list[tuple[str, Node | None]],
    steps: list[tuple[list[tuple[str, Node | None]], int]],
) -> None:
    """Each state is made from an earlier one, and its layers lie above those of any earlier one."""
    base = edited({}, start)
    with folder_of_its_own() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_stacks, "MAX_DEPTH", 3)
        (folder / "base").mkdir()
        write(base, folder / "base")
        blobs = BlobStore(folder)
        stacks = LayerStacks(folder / "layers", blobs, BaseFolder(folder / "base"))
        trees, states = [base], [Files("", {})]
        for changes, number in steps:
            at = number % len(trees)
            trees.append(edited(trees[at], changes))
            manifest = manifest_of(base, trees[-1], blobs)
            key = f"{files_digest(manifest)}-{len(states)}"
            states.append(Files(key, manifest))
            names = stacks.stack_of(states[-1], states[at])
            assert len(names) <= 4
            places = [folder / "layers" / name / "files" for name in names]
            assert overlaid([*places, folder / "base"]) == shown_by(base, trees[-1])
            assert stacks.stack_of(states[-1], states[0]) == names


def test_a_small_change_of_a_large_state_is_a_layer_above_it(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    blobs = BlobStore(tmp_path)
    stacks = LayerStacks(tmp_path / "layers", blobs, BaseFolder(tmp_path / "base"))
    large = {f"f{number}": Node("file", 0o644, "x", 1) for number in range(20)}
    before = Files("before", manifest_of({}, large, blobs))
    after = Files("after", manifest_of({}, large | {"f3": Node("file", 0o644, "y", 1)}, blobs))
    assert stacks.stack_of(before, Files("", {})) == ("before",)
    assert stacks.stack_of(after, before) == ("after", "before")
    assert os.listdir(tmp_path / "layers/after/files") == ["f3"]


def test_a_stack_with_a_lost_layer_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    blobs = BlobStore(tmp_path)
    stacks = LayerStacks(tmp_path / "layers", blobs, BaseFolder(tmp_path / "base"))
    tree = {f"f{number}": Node("file", 0o644, "x", 1) for number in range(9)}
    before = Files("before", manifest_of({}, tree, blobs))
    tree = tree | {"new": Node("file", 0o644, "x", 2)}
    after = Files("after", manifest_of({}, tree, blobs))
    stacks.stack_of(before, Files("", {}))
    assert stacks.stack_of(after, before) == ("after", "before")
    remove_folder(tmp_path / "layers/before")
    assert stacks.stack_of(after, Files("", {})) == ("after",)
    assert overlaid([tmp_path / "layers/after/files", tmp_path / "base"]) == tree
