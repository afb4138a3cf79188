"""Whole trees in memory, the manifests of their differences, and random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from blake3 import blake3
from hypothesis import strategies as st

from orchestrator.environment.files.manifest import Entry, Kind, Manifest, parents_of
from orchestrator.environment.files.state_view import is_same_entry

Tree = Mapping[str, Entry]
"""All paths of a tree, unlike a manifest."""

GONE = Entry("gone")
FOLDER = Entry("folder", 0o755)


@dataclass
class MemoryBase:
    """A base that exists in memory only."""

    tree: Tree
    contents: dict[str, bytes] = field(default_factory=dict)

    def kind(self, path: str) -> Kind | None:
        if not path:
            return "folder"
        return self.tree[path].kind if path in self.tree else None

    def is_same(self, path: str, entry: Entry) -> bool:
        return path in self.tree and is_same_entry(self.tree[path], entry)

    def entry(self, path: str) -> Entry | None:
        return self.tree.get(path)

    def read(self, path: str) -> bytes:
        return self.contents[self.tree[path].content]

    def names(self, path: str) -> Iterable[str]:
        return [each.rpartition("/")[2] for each in self.tree if each.rpartition("/")[0] == path]


class Contents:
    """Contents by digest, in place of a store."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def keep(self, data: bytes) -> str:
        digest = blake3(data).hexdigest()
        self.stored[digest] = data
        return digest

    def read(self, path: str, entry: Entry) -> bytes:
        if entry.content not in self.stored:
            raise FileNotFoundError(path)
        return self.stored[entry.content]

    def file(self, data: bytes, mode: int = 0o644, mtime_ns: int = 0) -> Entry:
        return Entry("file", mode, self.keep(data), len(data), mtime_ns)


def manifest_of(tree: Tree, base: Tree) -> dict[str, Entry]:
    """The canonical manifest of a tree, by comparing it with the whole base."""
    found = {
        path: entry
        for path, entry in tree.items()
        if path not in base or not is_same_entry(base[path], entry)
    }
    for path in base:
        parent = path.rpartition("/")[0]
        if path not in tree and (not parent or (parent in tree and tree[parent].kind == "folder")):
            found[path] = GONE
    return found


def tree_of(manifest: Manifest, base: Tree) -> dict[str, Entry]:
    """The whole tree that a manifest describes."""
    tree = {
        path: entry
        for path, entry in base.items()
        if path not in manifest
        and all(
            parent not in manifest or manifest[parent].kind == "folder"
            for parent in parents_of(path)
        )
    }
    return tree | {path: entry for path, entry in manifest.items() if entry.kind != "gone"}


def contents(manifest: Manifest) -> dict[str, tuple[str, int, str]]:
    """What counts in a manifest: without times and sizes."""
    return {path: (entry.kind, entry.mode, entry.content) for path, entry in manifest.items()}


STORE = Contents()
NAMES = ("a", "b", "two\nlines", "\udcff")
TEXTS = (b"", b"one\n", b"one\ntwo\nthree\nfour\n", b"one\n2\nthree\nfour\n", b"one\ntwo\nthree\n4")
LEAVES = [
    *(STORE.file(text) for text in TEXTS),
    STORE.file(b"one\n", 0o755),
    STORE.file(b"\0binary"),
    STORE.file(b"\0other"),
    Entry("link", 0o777, "a"),
    Entry("link", 0o777, "b/c"),
    Entry("fifo", 0o600),
]


@st.composite
def trees(draw: st.DrawFn, near: Tree | None = None) -> dict[str, Entry]:
    """A tree of up to three levels; or a few changes of another one."""
    tree = dict(near or {})
    for _ in range(draw(st.integers(0, 4 if near is not None else 10))):
        path = "/".join(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)))
        if any(tree.get(parent, FOLDER).kind != "folder" for parent in parents_of(path)):
            continue
        change = draw(st.sampled_from(["leaf", "leaf", "folder", "remove", "mode"]))
        if change == "mode" and path in tree and tree[path].kind == "folder":
            tree[path] = Entry("folder", draw(st.sampled_from([0o755, 0o700, 0o500])))
            continue
        if change == "folder" and path in tree and tree[path].kind == "folder":
            continue
        for each in [each for each in tree if each == path or each.startswith(f"{path}/")]:
            del tree[each]
        if change == "remove":
            continue
        tree |= {parent: FOLDER for parent in parents_of(path) if parent not in tree}
        tree[path] = FOLDER if change != "leaf" else draw(st.sampled_from(LEAVES))
    return tree


@st.composite
def histories(draw: st.DrawFn) -> tuple[Tree, Tree, Tree, Tree]:
    """The trees of a base, of an ancestor of two states, and of both."""
    base = draw(trees())
    ancestor = draw(trees(near=base))
    return base, ancestor, draw(trees(near=ancestor)), draw(trees(near=ancestor))
