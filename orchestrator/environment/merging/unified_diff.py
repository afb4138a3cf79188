"""Differences as text, in the form of Git."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.contents import Read
from orchestrator.environment.merging.differences import Difference
from orchestrator.environment.merging.line_diff import LineChange, line_changes, lines_of
from orchestrator.environment.merging.text_merge import MAX_TEXT_BYTES, is_text

_CONTEXT_LINES = 3
_UNSAFE = re.compile(rb"[^ !#-\[\]-~]")
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_TYPES = {"file": 0o100000, "link": 0o120000}


def unified(difference: Difference, read: Read) -> str:
    """A difference as a patch that `git apply` takes.

    The bytes of files that are not UTF-8 become lone surrogates: write the text with
    errors="surrogateescape". Of contents that are no text, or larger than MAX_TEXT_BYTES, the patch
    says only that they differ, which `git apply` refuses. Folders and fifos, which Git does not
    have, give a line that it skips.
    """
    path, _, before, after = difference
    sides = before, after
    if before is not None and after is not None and before.kind != after.kind:
        gone = Difference(path, "deleted", before, None)
        return unified(gone, read) + unified(Difference(path, "added", None, after), read)
    if any(entry is not None and entry.kind not in _TYPES for entry in sides):
        return _note(difference)
    old, new = quoted_name(f"a/{path}"), quoted_name(f"b/{path}")
    lines = [f"diff --git {old} {new}", *_mode_lines(before, after)]
    if before is None or after is None or before.content != after.content:
        old = "/dev/null" if before is None else old
        new = "/dev/null" if after is None else new
        lines += _content_lines(old, new, *(_content(path, entry, read) for entry in sides))
    return "".join(f"{line}\n" for line in lines)


def quoted_name(name: str) -> str:
    """A name as Git writes it: in quotes, with escapes, if it is not plain ASCII."""
    data = name.encode(errors="surrogateescape")
    if not _UNSAFE.search(data):
        return name
    return '"' + "".join(_escaped(byte) for byte in data) + '"'


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return "\\" + _ESCAPES[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _note(difference: Difference) -> str:
    entry = difference.after or difference.before
    assert entry is not None
    what = f"{entry.kind} {quoted_name(difference.path)}: {difference.kind}"
    if difference.before and difference.after:
        what += f" {difference.before.mode:04o} -> {difference.after.mode:04o}"
    return what + "\n"


def _mode_lines(before: Entry | None, after: Entry | None) -> list[str]:
    if before is None and after is not None:
        return [f"new file mode {_mode(after):o}"]
    if after is None and before is not None:
        return [f"deleted file mode {_mode(before):o}"]
    assert before is not None
    assert after is not None
    if before.kind == "link" or before.mode == after.mode:
        return []
    return [f"old mode {_mode(before):o}", f"new mode {_mode(after):o}"]


def _mode(entry: Entry) -> int:
    return _TYPES[entry.kind] | (entry.mode if entry.kind == "file" else 0)


def _content(path: str, entry: Entry | None, read: Read) -> bytes | None:
    """The content of one side as text; None: it is none."""
    if entry is None:
        return b""
    if entry.kind == "link":
        return entry.content.encode(errors="surrogateescape")
    if entry.size > MAX_TEXT_BYTES:
        return None
    data = read(path, entry)
    return data if is_text(data) else None


def _content_lines(old: str, new: str, before: bytes | None, after: bytes | None) -> list[str]:
    if before is None or after is None:
        return [f"Binary files {old} and {new} differ"]
    if before == after:  # an empty file was added or deleted
        return []
    hunks = _hunks(lines_of(before), lines_of(after))
    return [f"--- {_tabbed(old)}", f"+++ {_tabbed(new)}", *hunks]


def _tabbed(name: str) -> str:
    """A name with a blank ends with a tab, or what follows the blank could be a time."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _hunks(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[str]:
    for group in _grouped(line_changes(before, after)):
        start = max(0, group[0].start - _CONTEXT_LINES)
        end = min(len(before), group[-1].end + _CONTEXT_LINES)
        new_start = group[0].new_start - (group[0].start - start)
        new_end = group[-1].new_end + (end - group[-1].end)
        yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@"
        at = start
        for change in group:
            yield from _marked(" ", before[at : change.start])
            yield from _marked("-", before[change.start : change.end])
            yield from _marked("+", after[change.new_start : change.new_end])
            at = change.end
        yield from _marked(" ", before[at:end])


def _grouped(changes: Sequence[LineChange]) -> Iterator[list[LineChange]]:
    """Changes so near to one another that they share a hunk."""
    group: list[LineChange] = []
    for change in changes:
        if group and change.start - group[-1].end > 2 * _CONTEXT_LINES:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _range(start: int, end: int) -> str:
    count = end - start
    first = start + 1 if count else start
    return f"{first}" if count == 1 else f"{first},{count}"


def _marked(mark: str, lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        text = line.decode(errors="surrogateescape")
        if text.endswith("\n"):
            yield mark + text[:-1]
        else:
            yield f"{mark}{text}\n\\ No newline at end of file"
