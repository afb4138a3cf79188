"""Differences between states: a summary of paths, coloured lines, a JSON document. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from cli.reading.state_diffs import FileDiff, StateDiff
from orchestrator.display.run_text import counted
from orchestrator.environment.merging.differences import Difference
from store.printable_text import one_line

_LETTERS = {"added": "A", "changed": "M", "deleted": "D", "mode": "M", "kind": "T"}
_WORDS = {"mode": "with other permissions", "kind": "of another kind"}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def coloured(text: str) -> Iterator[Text]:
    """The lines of a unified diff."""
    is_header = True
    for line in text.removesuffix("\n").split("\n"):
        is_header = line.startswith("diff --git ") or (is_header and not line.startswith("@@ "))
        yield Text(line, style="bold" if is_header else _STYLES.get(line[:1], ""))


def stat_lines(files: Sequence[FileDiff]) -> Iterator[Text]:
    """A line for each path, then the counts."""
    width = max((len(one_line(file.difference.path)) for file in files), default=0)
    for file in files:
        path, kind, _, _ = file.difference
        yield Text.assemble(f"{_LETTERS[kind]} {one_line(path):<{width}}  ", *_size(file))
    yield Text(summary(files))


def summary(files: Sequence[FileDiff]) -> str:
    """The counts in words: "3 paths: 1 added, 2 changed; 4 lines added, 1 removed"."""
    if not files:
        return "no differences"
    kinds = Counter(file.difference.kind for file in files)
    listed = ", ".join(f"{kinds[kind]:,} {_WORDS.get(kind, kind)}" for kind in sorted(kinds))
    added, removed = map(sum, zip(*(file.num_lines for file in files), strict=True))
    lines = f"{counted(added, 'line')} added, {removed:,} removed"
    return f"{counted(len(files), 'path')}: {listed}; {lines}"


def diff_document(diff: StateDiff, files: Sequence[FileDiff]) -> dict[str, Any]:
    """The JSON document."""
    return {
        "base": diff.base,
        "before": None if diff.before is None else diff.before.id,
        "after": diff.after.id,
        "counts": dict(sorted(Counter(file.difference.kind for file in files).items())),
        "changes": [_change(file) for file in files],
        "diff": "".join(file.text for file in files),
    }


def _change(file: FileDiff) -> dict[str, Any]:
    path, kind, before, after = file.difference
    entry = after or before
    assert entry is not None
    added, removed = file.num_lines
    return {
        "path": path,
        "kind": kind,
        "what": entry.kind,
        "mode": f"{entry.mode:04o}",
        "bytes": entry.size,
        "lines_added": added,
        "lines_removed": removed,
        "is_binary": file.is_binary,
    }


def _size(file: FileDiff) -> Iterator[tuple[str, str]]:
    added, removed = file.num_lines
    _, kind, before, after = file.difference
    if added:
        yield f"+{added:,}", "green"
    if removed:
        yield f"{' ' if added else ''}-{removed:,}", "red"
    if not added and not removed:
        yield ("binary" if file.is_binary else _kinds(file.difference)), "dim"
    if before is not None and after is not None and kind != "kind" and before.mode != after.mode:
        yield f" {before.mode:04o} -> {after.mode:04o}", ""


def _kinds(difference: Difference) -> str:
    """What it was and is, if that is no matter of lines."""
    sides = [each.kind for each in (difference.before, difference.after) if each is not None]
    if difference.kind == "mode":
        return "permissions"
    return " -> ".join(dict.fromkeys(sides))
