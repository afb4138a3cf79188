"""The three-way merge of one file, link or fifo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.environment.conflicts import ConflictKind, Hunk
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.contents import Read
from orchestrator.environment.merging.text_merge import MAX_TEXT_BYTES, is_text, merge_text


@dataclass(frozen=True, slots=True)
class FileMerge:
    """What two sides have made of one path, together.

    Attributes:
        entry: what is taken if there is no conflict.
        ours, theirs: with kind "mode": the merged content with either permissions.
        is_by_lines: whether the content was merged by lines.
    """

    entry: Entry
    kind: ConflictKind | None = None
    hunks: tuple[Hunk, ...] = ()
    theirs: Entry | None = None
    is_by_lines: bool = False


def merge_files(
    path: str,
    ancestor: Entry | None,
    ours: Entry,
    theirs: Entry,
    *,
    read: Read,
    keep: Callable[[bytes], str],
) -> FileMerge:
    """Merge content and mode of two entries of one kind, which is no folder.

    Args:
        ancestor: None also if it is of another kind.
    """
    assert ours.kind == theirs.kind != "folder"
    if ancestor is not None and ancestor.kind != ours.kind:
        ancestor = None
    before = ancestor and ancestor.content
    is_by_lines = False
    if ours.content == theirs.content:
        content = max(ours, theirs, key=lambda entry: entry.mtime_ns)
    elif ours.content == before:
        content = theirs
    elif theirs.content == before:
        content = ours
    elif ancestor is None:
        return FileMerge(ours, "both added", theirs=theirs)
    else:
        merged = _merge_contents(path, ancestor, ours, theirs, read, keep)
        if not isinstance(merged, Entry):
            return FileMerge(ours, "text" if merged else "binary", merged, theirs)
        content, is_by_lines = merged, True
    mode = merged_mode(ancestor and ancestor.mode, ours.mode, theirs.mode)
    if mode is None:
        either = content._replace(mode=theirs.mode)
        return FileMerge(content._replace(mode=ours.mode), "mode", (), either, is_by_lines)
    return FileMerge(content._replace(mode=mode), is_by_lines=is_by_lines)


def merged_mode(ancestor: int | None, ours: int, theirs: int) -> int | None:
    """The permissions that one side changed; None: both did, in different ways."""
    if ours == theirs or theirs == ancestor:
        return ours
    return theirs if ours == ancestor else None


def _merge_contents(
    path: str,
    ancestor: Entry,
    ours: Entry,
    theirs: Entry,
    read: Read,
    keep: Callable[[bytes], str],
) -> Entry | tuple[Hunk, ...]:
    """A file with the merged text; else the conflicts, none if it is not merged by lines."""
    entries = ancestor, ours, theirs
    if ours.kind != "file" or any(entry.size > MAX_TEXT_BYTES for entry in entries):
        return ()
    contents = [read(path, entry) for entry in entries]
    if not all(map(is_text, contents)):
        return ()
    merged = merge_text(*contents)
    if isinstance(merged, bytes):
        mtime_ns = max(ours.mtime_ns, theirs.mtime_ns)
        return Entry("file", ours.mode, keep(merged), len(merged), mtime_ns)
    for content in contents:  # the base's own are not stored yet; a resolver reads them
        keep(content)
    return merged
