"""What a workspace has changed, as a value that flows return and runs record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.environment.files.manifest import Kind
from orchestrator.environment.merging.contents import Read
from orchestrator.environment.merging.differences import Difference, DifferenceKind
from orchestrator.environment.merging.unified_diff import quoted_name, unified

TEXT_LIMIT = 200_000
"""Characters of a change set's text, unless asked for otherwise."""

_MAX_NAMED = 20

_MAX_TRIES = 100
"""After so many diffs that did not fit, no more files are read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs from before.

    Attributes:
        kind: as in `Difference`.
        what: what is there now; if it was deleted, what was there.
        digest: BLAKE3 of a file's content, in hex; target of a link; else "".
        mode: permission bits.
        size: of a file, in bytes.
    """

    path: str
    kind: DifferenceKind
    what: Kind
    digest: str
    mode: int
    size: int


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of a workspace against its base, or against an earlier state.

    Attributes:
        base: path of the base.
        base_identity: which content the base had: see `BaseListing.identity`.
        changes: by path. Of a folder that was deleted only the folder itself.
        text: unified diff that `git apply` takes, as far as it is not too long; a file's diff is
            in it as a whole or not at all. Its last line says what is not in it.
        num_cut: how many diffs are not in the text.
    """

    base: str
    base_identity: str
    changes: tuple[Change, ...] = ()
    text: str = ""
    num_cut: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return self.summary

    @property
    def paths(self) -> tuple[str, ...]:
        """What has changed, relative to the base."""
        return tuple(change.path for change in self.changes)

    @property
    def counts(self) -> dict[DifferenceKind, int]:
        """How many changes there are of each kind."""
        return dict(sorted(Counter(change.kind for change in self.changes).items()))

    @property
    def summary(self) -> str:
        """The counts in words."""
        words = {"mode": "with other permissions", "kind": "of another kind"}
        listed = [f"{count} {words.get(kind, kind)}" for kind, count in self.counts.items()]
        return ", ".join(listed) or "no changes"


def changes_between(
    found: Sequence[Difference],
    *,
    base: str,
    base_identity: str,
    read: Read,
    text_of: Iterable[Difference] | None = None,
    text_limit: int = TEXT_LIMIT,
) -> ChangeSet:
    """The change set of these differences.

    Args:
        text_of: the differences with what lay in deleted folders, so that the text deletes it too;
            without, such files are not in the text.
        text_limit: characters; the rest is left out, and the text says so.
    """
    text, num_cut = _text(found if text_of is None else text_of, read, text_limit)
    return ChangeSet(base, base_identity, tuple(map(_change, found)), text, num_cut)


def _change(difference: Difference) -> Change:
    path, kind, before, after = difference
    entry = after or before
    assert entry is not None
    return Change(path, kind, entry.kind, entry.content, entry.mode, entry.size)


def _text(found: Iterable[Difference], read: Read, limit: int) -> tuple[str, int]:
    parts: list[str] = []
    cut: list[str] = []
    left = limit
    for difference in found:
        part = unified(difference, read) if len(cut) < _MAX_TRIES else None
        if part is None or len(part) > left:
            cut.append(difference.path)
        else:
            parts.append(part)
            left -= len(part)
    if cut:
        named = ", ".join(map(quoted_name, cut[:_MAX_NAMED]))
        more = f" and {len(cut) - _MAX_NAMED} more" if len(cut) > _MAX_NAMED else ""
        parts.append(f"(not shown, as the text would be too long: {named}{more})\n")
    return "".join(parts), len(cut)
