"""The files of a state: a workspace's changes against its base, in one canonical form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from blake3 import blake3

Kind = Literal["file", "folder", "link", "fifo", "gone"]


class Entry(NamedTuple):
    """One path that differs from the base. Names of one file (hard links) are files of their own:
    overlayfs separates them too, at the first write of a fork to one of them.

    Attributes:
        kind: "gone": the base has the path, and this state has not.
        mode: permission bits.
        content: digest of a file's bytes; target of a link; else "".
        size: of a file, in bytes.
        mtime_ns: kept, so that tools such as make see the same times; not part of the digest.
    """

    kind: Kind
    mode: int = 0
    content: str = ""
    size: int = 0
    mtime_ns: int = 0


Manifest = Mapping[str, Entry]
"""Path relative to the workspace -> what is there. A path whose parent is gone, or no folder any
more, is not listed; nor is one that is as in the base. So equal trees have equal manifests."""


class Files(NamedTuple):
    """The files of a state.

    Attributes:
        key: names them, with their times: the digest of the base's identity and of the manifest.
    """

    key: str
    manifest: Manifest


def files_digest(manifest: Manifest) -> str:
    """The digest of a state's files: of paths, kinds, modes and contents, not of times."""
    hasher = blake3()
    for path in sorted(manifest):
        entry = manifest[path]
        line = [path, entry.kind, entry.mode, entry.content]
        hasher.update(json.dumps(line).encode() + b"\n")
    return hasher.hexdigest()


def to_json(manifest: Manifest) -> bytes:
    """A manifest as JSON. Names that are not UTF-8 have escaped surrogates."""
    lines = {path: list(manifest[path]) for path in sorted(manifest)}
    return json.dumps(lines, separators=(",", ":")).encode()


def from_json(data: bytes) -> dict[str, Entry]:
    """The manifest that `to_json` wrote; raises ValueError or TypeError if it is none."""
    return {path: Entry(*fields) for path, fields in json.loads(data).items()}


def contents_of(manifests: Iterable[Manifest]) -> set[str]:
    """The digests of all files."""
    return {
        entry.content
        for manifest in manifests
        for entry in manifest.values()
        if entry.kind == "file"
    }


def parents_of(path: str) -> list[str]:
    """The folders that a path lies in, the outermost first, without the workspace itself."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
