"""Where two texts differ, line by line."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_MAX_PAIRS = 1 << 18
"""Of equal lines, in a stretch that difflib compares; it may take their number to the power 1.5."""


class LineChange(NamedTuple):
    """Lines `start` to `end` of the first text are lines `new_start` to `new_end` of the second."""

    start: int
    end: int
    new_start: int
    new_end: int


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a text, each with its line end; the last one may have none."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def line_changes(before: Sequence[bytes], after: Sequence[bytes]) -> list[LineChange]:
    """The changes from one text to another, in order; unchanged lines lie between any two.

    Lines that both have exactly once, in the same order, are anchors; difflib compares what lies
    between them. A stretch without anchors in which too many lines are equal is one change. What
    could stand at several places, such as one of two equal lines that was deleted, is put at the
    last of them, as Git does.
    """
    found: list[LineChange] = []
    for stretch in _stretches(before, after):
        found += _compared(before, after, stretch)
    return _moved_down(found, before, after)


def _stretches(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[LineChange]:
    """What lies between the anchors and may differ."""
    start, end, new_end = 0, len(before), len(after)
    while start < min(end, new_end) and before[start] == after[start]:
        start += 1
    while start < min(end, new_end) and before[end - 1] == after[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    at, new_at = start, start
    for anchor, new_anchor in _anchors(before, after, start, end, new_end):
        if at < anchor or new_at < new_anchor:
            yield LineChange(at, anchor, new_at, new_anchor)
        at, new_at = anchor + 1, new_anchor + 1
    if at < end or new_at < new_end:
        yield LineChange(at, end, new_at, new_end)


def _anchors(
    before: Sequence[bytes], after: Sequence[bytes], start: int, end: int, new_end: int
) -> list[tuple[int, int]]:
    """The longest rising sequence of places of lines that both texts have exactly once."""
    counts, new_counts = Counter(before[start:end]), Counter(after[start:new_end])
    places = {
        after[index]: index for index in range(start, new_end) if new_counts[after[index]] == 1
    }
    smallest: list[int] = []  # the last new place of the best sequence of each length
    chains: list[tuple[int, int, int]] = []  # place, new place, index of the link before
    heads: list[int] = []
    for index in range(start, end):
        line = before[index]
        if counts[line] != 1 or line not in places:
            continue
        length = bisect_left(smallest, places[line])
        chains.append((index, places[line], heads[length - 1] if length else -1))
        if length == len(smallest):
            smallest.append(places[line])
            heads.append(len(chains) - 1)
        else:
            smallest[length], heads[length] = places[line], len(chains) - 1
    anchors: list[tuple[int, int]] = []
    link = heads[-1] if heads else -1
    while link >= 0:
        index, new_index, link = chains[link]
        anchors.append((index, new_index))
    return anchors[::-1]


def _compared(
    before: Sequence[bytes], after: Sequence[bytes], stretch: LineChange
) -> list[LineChange]:
    start, end, new_start, new_end = stretch
    former, latter = before[start:end], after[new_start:new_end]
    counts, new_counts = Counter(former), Counter(latter)
    if sum(count * new_counts[line] for line, count in counts.items()) > _MAX_PAIRS:
        return [stretch]
    matcher = SequenceMatcher(None, former, latter, autojunk=False)
    return [
        LineChange(start + first, start + last, new_start + new_first, new_start + new_last)
        for tag, first, last, new_first, new_last in matcher.get_opcodes()
        if tag != "equal"
    ]


def _moved_down(
    changes: Sequence[LineChange], before: Sequence[bytes], after: Sequence[bytes]
) -> list[LineChange]:
    """Each pure insertion or deletion as far down as it can be; what then touches is one change."""
    moved: list[LineChange] = []  # the last change first
    for change in reversed(changes):
        start, end, new_start, new_end = change
        while True:
            limit = moved[-1].start if moved else len(before)
            if end == limit and moved:
                last = moved.pop()
                end, new_end = last.end, last.new_end
            elif end < limit and (
                (start == end and after[new_start] == before[end])
                or (new_start == new_end and before[start] == before[end])
            ):
                start, end, new_start, new_end = start + 1, end + 1, new_start + 1, new_end + 1
            else:
                break
        moved.append(LineChange(start, end, new_start, new_end))
    return moved[::-1]
