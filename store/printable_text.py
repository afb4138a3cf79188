"""Recorded text without control characters, so that it cannot control what shows it."""

from __future__ import annotations

_DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SEPARATORS = [0x2028, 0x2029]  # of lines and paragraphs
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *_SEPARATORS, *_DIRECTIONS]
_LAYOUT = "\n\t"
_REMOVED = {code: None for code in _CONTROLS if chr(code) not in _LAYOUT}


def printable(text: str) -> str:
    """The text without control characters, except line breaks and tabs."""
    return text if text.isprintable() else text.translate(_REMOVED)


def one_line(text: str) -> str:
    """The same in one line: otherwise a recorded name could imitate further lines of output."""
    return " ".join(printable(text).split())
