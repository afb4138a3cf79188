"""Random changes of a tree: drawn as numbers, which are turned into paths that the tree has."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.unit.orchestrator.environment.modelling.operators import Listing

LONG = "x" * 255
NAMES = [
    "a",
    "b",
    "c",
    "-rf",
    " sp ace ",
    "two\nlines",
    os.fsdecode(b"\xff\xfe"),
    LONG,
    ".hid",
    "ü",
]
TARGETS = ["a", "b", "a/b", "c/a", ".", "nowhere/at all", "/nowhere", NAMES[5], NAMES[6]]
MODES = [0o755, 0o644, 0o000, 0o500, 0o400, 0o700, 0o777, 0o555, 0o4755, 0o2755, 0o1777, 0o311]
TEXTS = ["", "x", "base\n", "a longer text\n" * 5]

_GIVEN: dict[str, Sequence[Any]] = {
    **dict.fromkeys(["write", "append", "replace", "become_file", "from_nowhere"], TEXTS),
    **dict.fromkeys(["become_folder", "again"], NAMES),
    **dict.fromkeys(["mkdir", "chmod"], MODES),
    "sparse": [100, 1_200_000],
    "truncate": [0, 1, 5000],
    "touch": range(1_000_000_000, 1_000_000_100),
    "become_link": TARGETS,
}
"""Second arguments of operations."""

_MADE = [
    "write",
    "write",
    "replace",
    "sparse",
    "mkdir",
    "deep",
    "symlink",
    "fifo",
    "socket",
    "from_nowhere",
    "link",
]
_OF_FILES = ["write", "append", "truncate", "replace", "remove", "become_folder"]
_OF_FOLDERS = ["rmdir", "rmtree", "become_file", "again"]
_OF_ANY = ["chmod", "touch", "become_link", "rename", "rename", "exchange"]
_ODD = ["write", "mkdir", "remove", "rmtree", "rename", "symlink", "chmod", "link"]
COMMANDS = ["mv", "mv", "cp", "rm", "mkdir", "sed", "ln", "tar"]


class Place(NamedTuple):
    """A path before it is known which there are: the number-th, or a new name in a folder."""

    number: int
    name: str | None

    def in_tree(self, listing: Listing, kind: str = "") -> str:
        """The path; one of a kind, if there is any."""
        if self.name is None:
            paths = sorted(path for path, each in listing.items() if kind in ("", each.kind))
            paths = paths or sorted(listing) or ["a"]
            return paths[self.number % len(paths)]
        folders = ["", *(path for path, each in sorted(listing.items()) if each.kind == "folder")]
        folder = folders[self.number % len(folders)]
        return f"{folder}/{self.name}" if folder else self.name


class Change(NamedTuple):
    """An operation of a tree operator, before its paths are known."""

    name: str
    one: Place
    other: Place
    number: int
    kind: str

    def operation(self, listing: Listing) -> list[Any]:
        one, other = self.one.in_tree(listing, self.kind), self.other.in_tree(listing)
        match self.name:
            case "deep":
                return [self.name, os.path.dirname(one) or ".", "d", 40]
            case "symlink":
                return [self.name, self._one_of(TARGETS), one]
            case "link":
                return [self.name, self.other.in_tree(listing, "file"), one]
            case "rename" | "exchange":
                return [self.name, one, other]
            case name if name in _GIVEN:
                return [name, one, self._one_of(_GIVEN[name])]
        return [self.name, one]

    def _one_of(self, values: Sequence[Any]) -> Any:
        return values[self.number % len(values)]

    def command(self, listing: Listing) -> str:
        """The same kind of change by programs of the system."""
        one, other = (shlex.quote(f"./{path}") for path in self.paths(listing))
        return {
            "mv": f"mv -T {one} {other}",
            "cp": f"cp -aT {one} {other}",
            "rm": f"rm -rf {one}",
            "mkdir": f"mkdir -p {other}/n/m",
            "sed": f"test -f {one} && sed -i s/x/y/ {one}",
            "ln": f"ln -sfn target {other}",
            "tar": f"tar cf - -C {one} . | (mkdir -p {other} && tar xf - -C {other})",
        }[self.name]

    def paths(self, listing: Listing) -> tuple[str, str]:
        """Those of `command`."""
        return self.one.in_tree(listing, self.kind), self.other.in_tree(listing)


numbers = st.integers(0, 99)
places = st.builds(Place, numbers, st.none() | st.sampled_from(NAMES))
_there = st.builds(Place, numbers, st.none())
_new = st.builds(Place, numbers, st.sampled_from(NAMES))


def _changes(names: list[str], one: Any, kind: str = "") -> st.SearchStrategy[Change]:
    return st.builds(Change, st.sampled_from(names), one, places, numbers, st.just(kind))


changes = st.one_of(
    _changes(_MADE, _new),
    _changes(_OF_FILES, _there, "file"),
    _changes(_OF_FOLDERS, _there, "folder"),
    _changes(_OF_ANY, _there),
    _changes(_ODD, places),
)
"""Changes by system calls; most of them are possible."""

commands = st.one_of(
    _changes(COMMANDS, _there),
    _changes(["mv", "cp", "rm", "tar"], _there, "folder"),
    _changes(["mv", "cp", "sed"], _there, "file"),
)
"""Changes by programs."""


def is_plain(listing: Listing, path: str) -> bool:
    """Whether a program may copy a path with all below it."""
    return all(
        each.mode & 0o400 and (each.kind != "folder" or each.mode & 0o700 == 0o700)
        for at, each in listing.items()
        if at == path or at.startswith(f"{path}/")
    )


def may_be_fifo(listing: Listing, path: str) -> bool:
    """Whether a program that writes to a path, or below it, may wait for the reader of a FIFO."""
    names = {os.path.basename(at) for at, each in listing.items() if each.kind == "fifo"}
    is_linked = not names.isdisjoint(map(os.path.basename, TARGETS))
    return any(
        each.kind == "fifo" or (each.kind == "link" and is_linked)
        for at, each in listing.items()
        if at == path or at.startswith(f"{path}/")
    )
