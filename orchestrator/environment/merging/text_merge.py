"""The three-way merge of two changed texts, line by line (diff3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from orchestrator.environment.conflicts import Hunk
from orchestrator.environment.merging.line_diff import LineChange, line_changes, lines_of

MAX_TEXT_BYTES = 4 << 20
"""Larger files are not compared by lines."""

_LOOKED_AT_BYTES = 8000
"""As in Git: a file with a NUL byte so near to its beginning is no text."""


def is_text(data: bytes) -> bool:
    """Whether a content is compared by lines."""
    return len(data) <= MAX_TEXT_BYTES and b"\0" not in data[:_LOOKED_AT_BYTES]


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | tuple[Hunk, ...]:
    """The text with the changes of both sides.

    Changes of one side are taken, and so are those that both made alike. Others that overlap or
    touch, without an unchanged line between them, are conflicts.

    Returns:
        The merged text, or else its conflicts.
    Source: Khanna, Kunal and Pierce (2007), "A formal investigation of diff3".
    """
    lines, our_lines, their_lines = lines_of(base), lines_of(ours), lines_of(theirs)
    merged: list[bytes] = []
    hunks: list[Hunk] = []
    at = 0
    changes = line_changes(lines, our_lines), line_changes(lines, their_lines)
    for region in _regions(*changes):
        merged += lines[at : region.start]
        at = region.end
        our_range, their_range = region.range_in(region.ours), region.range_in(region.theirs)
        if not region.theirs:
            merged += our_lines[slice(*our_range)]
        elif not region.ours or our_lines[slice(*our_range)] == their_lines[slice(*their_range)]:
            merged += their_lines[slice(*their_range)]
        else:
            hunks.append(Hunk((region.start, region.end), our_range, their_range))
    return tuple(hunks) or b"".join([*merged, *lines[at:]])


class _Region(NamedTuple):
    """Lines of the base in which changes overlap or touch."""

    start: int
    end: int
    ours: Sequence[LineChange]
    theirs: Sequence[LineChange]

    def range_in(self, changes: Sequence[LineChange]) -> tuple[int, int]:
        """The lines that stand there on the side that made these changes."""
        if not changes:
            return 0, 0
        first, last = changes[0], changes[-1]
        return (
            first.new_start - (first.start - self.start),
            last.new_end + (self.end - last.end),
        )


def _regions(ours: Sequence[LineChange], theirs: Sequence[LineChange]) -> Iterator[_Region]:
    merged = sorted([(change, 0) for change in ours] + [(change, 1) for change in theirs])
    at = 0
    while at < len(merged):
        (start, end, *_), _ = merged[at]
        groups: tuple[list[LineChange], list[LineChange]] = ([], [])
        while at < len(merged) and (merged[at][0].start <= end):
            change, side = merged[at]
            groups[side].append(change)
            end = max(end, change.end)
            at += 1
        yield _Region(start, end, *groups)
