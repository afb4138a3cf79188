"""Marks of sources in a text, such as [1]; and texts without what a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

_RANGE = r"\s*[0-9]{1,4}(?:\s*[-\u2013]\s*[0-9]{1,4})?\s*"
# Marks of sources, such as [1], [1, 3] and [2-4]; neither links nor what is in `code`.
_MARKS = re.compile(
    rf"`[^`]*`|(?P<space>\s?)[\[\u3010](?P<numbers>{_RANGE}(?:,{_RANGE})*)[\]\u3011](?!\()"
)


_FIRST_YEAR = 1000
"""From this number on a number in brackets is a year; no report has so many sources."""


def keep_marks(text: str, known: Set[int]) -> str:
    """The text with only the marks of known sources, each in its own brackets."""

    def kept(match: re.Match[str]) -> str:
        if match["numbers"] is None:
            return match[0]
        numbers = _numbers(match["numbers"])
        if known.isdisjoint(numbers) and _is_no_mark(match, numbers):
            return match[0]
        marks = "".join(f"[{number}]" for number in numbers if number in known)
        return f"{match['space']}{marks}" if marks else ""

    return _MARKS.sub(kept, text)


def _is_no_mark(match: re.Match[str], numbers: Sequence[int]) -> bool:
    """Whether it is a year such as [2024], or an index as of x[0]."""
    before = match.string[match.start() - 1 : match.start()]
    is_index = not match["space"] and before.isalnum()
    return is_index or 0 in numbers or max(numbers) >= _FIRST_YEAR


def marked_numbers(text: str) -> list[int]:
    """The numbers of all marks in a text."""
    listed = [match["numbers"] for match in _MARKS.finditer(text) if match["numbers"]]
    return [number for numbers in listed for number in _numbers(numbers)]


def _numbers(listed: str) -> list[int]:
    """The numbers of a mark: "1, 3-5" gives 1, 3, 4, 5."""
    numbers: list[int] = []
    for part in listed.split(","):
        first, _, last = part.replace("\u2013", "-").partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def one_line(text: str) -> str:
    """The text as one printable line; "-" if nothing is left."""
    return " ".join(printable(text).split()) or "-"


def printable(text: str) -> str:
    """The text without control characters, so that it cannot send commands to a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else " " for character in text
    )
