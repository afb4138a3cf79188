"""Merging by lines agrees with Git wherever both have no conflict."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.environment.conflicts import Hunk
from orchestrator.environment.merging.line_diff import line_changes, lines_of
from orchestrator.environment.merging.text_merge import MAX_TEXT_BYTES, is_text, merge_text

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"d\n", b"\n"]), max_size=12)
TEXTS = st.builds(lambda lines, end: b"".join(lines) + end, LINES, st.sampled_from([b"", b"end"]))


@st.composite
def edited(draw: st.DrawFn, text: bytes) -> bytes:
    lines = lines_of(text)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(LINES)[:2]
    return b"".join(lines)


def merged_by_git(folder: Path, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    for name, data in (("base", base), ("ours", ours), ("theirs", theirs)):
        (folder / name).write_bytes(data)
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def random_edit(chance: Random, lines: list[bytes]) -> bytes:
    lines = list(lines)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(lines) + 1)
        new = [b"new %d\n" % chance.randrange(10**6) for _ in range(chance.randrange(3))]
        lines[at : at + chance.randrange(3)] = new
    text = b"".join(lines)
    return text.removesuffix(b"\n") if chance.random() < 0.1 else text


@pytest.mark.usefixtures("subprocesses")
def test_the_result_is_that_of_git_if_both_have_no_conflict(tmp_path: Path) -> None:
    chance, num_clean = Random(1), 0
    for _ in range(120):
        end = chance.choice([b"\n", b"\r\n"])
        # One line in ten is an empty one, as in programs.
        lines = [
            end if chance.random() < 0.1 else b"line %d" % chance.randrange(10**6) + end
            for _ in range(chance.randrange(40))
        ]
        base, ours, theirs = b"".join(lines), random_edit(chance, lines), random_edit(chance, lines)
        merged, expected = (
            merge_text(base, ours, theirs),
            merged_by_git(tmp_path, base, ours, theirs),
        )
        if isinstance(merged, bytes) and expected is not None:
            assert merged == expected, (base, ours, theirs)
            num_clean += 1
        else:
            assert not isinstance(merged, bytes), (base, ours, theirs)
            assert expected is None, (base, ours, theirs)
    assert num_clean > 60


@given(st.data())
def test_a_change_of_one_side_is_taken_and_the_order_of_the_sides_does_not_matter(
    data: st.DataObject,
) -> None:
    base = data.draw(TEXTS)
    ours, theirs = data.draw(edited(base)), data.draw(edited(base))
    assert merge_text(base, ours, ours) == ours
    assert merge_text(base, ours, base) == ours
    assert merge_text(base, base, theirs) == theirs
    merged, mirrored = merge_text(base, ours, theirs), merge_text(base, theirs, ours)
    if isinstance(merged, bytes):
        assert mirrored == merged
    else:
        assert not isinstance(mirrored, bytes)
        assert [(hunk.base, hunk.theirs, hunk.ours) for hunk in mirrored] == list(merged)


@given(TEXTS, TEXTS)
def test_the_changes_turn_one_text_into_the_other(before: bytes, after: bytes) -> None:
    lines, new_lines = lines_of(before), lines_of(after)
    built, at = [], 0
    for start, end, new_start, new_end in line_changes(lines, new_lines):
        assert start > at or at == 0
        assert end > start or new_end > new_start
        built += [*lines[at:start], *new_lines[new_start:new_end]]
        at = end
    assert b"".join([*built, *lines[at:]]) == after


def test_a_conflict_says_which_lines_of_each_side_it_concerns() -> None:
    base = b"1\n2\n3\n4\n5\n"
    hunks = merge_text(base, b"1\n2a\n2b\n3\n4\n5\n", b"0\n1\n2c\n3\n4\n5")
    assert hunks == (Hunk((1, 2), (1, 3), (2, 3)),)


def test_changes_without_a_line_between_them_conflict() -> None:
    assert merge_text(b"1\n2\n3\n4\n", b"1\nx\n3\n4\n", b"1\n2\ny\n4\n") == (
        Hunk((1, 3), (1, 3), (1, 3)),
    )
    assert merge_text(b"1\n2\n3\n4\n", b"1\nx\n3\n4\n", b"1\n2\n3\ny\n") == b"1\nx\n3\ny\n"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (b"", b"", b"", b""),
        (b"", b"a", b"", b"a"),
        (b"a", b"", b"a", b""),
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nc", b"A\nb\nc"),
        (b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n"),
        (b"a\rb\x0c\nc\n", b"a\rb\x0c\nc\nd\n", b"A\rb\x0c\nc\n", b"A\rb\x0c\nc\nd\n"),
    ],
)
def test_line_ends_are_kept(base: bytes, ours: bytes, theirs: bytes, merged: bytes) -> None:
    assert merge_text(base, ours, theirs) == merged


def test_many_equal_lines_are_compared_as_a_whole() -> None:
    """difflib alone would take hours for these."""
    base = b"\n" * 100_000
    ours, theirs = b"x\n" + base + b"y\n", b"\n" * 60_000 + b"z\n" + b"\n" * 40_000
    assert merge_text(base, ours, base) == ours
    assert merge_text(base, ours, ours) == ours
    assert not isinstance(merge_text(base, ours, theirs), bytes)


def test_two_edits_at_the_ends_of_a_large_text_are_merged() -> None:
    lines = [b"line %d\n" % number for number in range(60_000)]
    ours, theirs = b"".join([b"first\n", *lines]), b"".join([*lines, b"last\n"])
    assert merge_text(b"".join(lines), ours, theirs) == b"".join([b"first\n", *lines, b"last\n"])


def test_binary_and_very_large_files_are_no_text() -> None:
    assert is_text(b"")
    assert is_text(b"\xff\xfe" * 100)
    assert not is_text(b"text\0")
    assert is_text(b"x" * 8000 + b"\0")
    assert is_text(b"x" * MAX_TEXT_BYTES)
    assert not is_text(b"x" * (MAX_TEXT_BYTES + 1))
