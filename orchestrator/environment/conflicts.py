"""What a merge of two states cannot decide by itself: values, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from orchestrator.environment.files.manifest import Entry

ConflictKind = Literal["text", "binary", "both added", "deleted and changed", "kind", "mode"]


class Hunk(NamedTuple):
    """Lines that both sides changed, in different ways: ranges of line numbers, counted from 0.

    Attributes:
        base, ours, theirs: the first line, and the line after the last one.
    """

    base: tuple[int, int]
    ours: tuple[int, int]
    theirs: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that both sides changed since their common ancestor, in different ways.

    Attributes:
        kind: "text": the lines in `hunks`; their contents are all stored. "binary": contents that
            are not merged by lines, and targets of links. "both added": different contents at a
            path where the ancestor has nothing. "deleted and changed": one side deleted it, or a
            folder that it lies in. "kind": a file on one side, a folder or a link on the other.
            "mode": different permissions; the contents of `ours` and `theirs` are merged already.
        ours, theirs, ancestor: what each has at the path; None: nothing.
        side: which of the merged states `theirs` is; the first one is 0.
    """

    path: str
    kind: ConflictKind
    ours: Entry | None
    theirs: Entry | None
    ancestor: Entry | None
    hunks: tuple[Hunk, ...] = ()
    side: int = 1

    def __str__(self) -> str:
        return f"{self.path!r} ({_REASONS[self.kind]})"


_REASONS: dict[ConflictKind, str] = {
    "text": "the same lines changed",
    "binary": "two contents that cannot be merged by lines",
    "both added": "added with two contents",
    "deleted and changed": "deleted on one side, changed on the other",
    "kind": "a file on one side, something else on the other",
    "mode": "two permissions",
}
