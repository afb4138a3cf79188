"""The kind of each line of a text: prose, heading, code, blank or without words."""

import re
from collections.abc import Sequence
from enum import Enum, auto


class LineKind(Enum):
    """The kind of one line."""

    TEXT = auto()
    HEADING = auto()
    BLANK = auto()
    RULE = auto()  # without words: an underline, a table's separator, a single bracket
    FENCE = auto()
    CODE = auto()


_ATX = re.compile(r" {0,3}#{1,6}(?=[ \t]|$)")
_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<info>.*)$")
_UNDERLINE = re.compile(r" {0,3}(?:={3,}|-{3,})[ \t]*$")
_NO_WORD = re.compile(r"[\W_]*$")
_MAX_TITLE_CHARS = 200


def line_kinds(lines: Sequence[str], *, markdown: bool, first_line: int = 1) -> list[LineKind]:
    """The kind of each line.

    Args:
        lines: consecutive lines, without their line ends.
        markdown: whether "#" headings, fences and front matter are recognised; underlined
            headings are recognised in any text.
        first_line: number of lines[0] in its file; front matter can only begin at line 1.
    """
    kinds: list[LineKind] = []
    fence = ""
    for i, line in enumerate(lines):
        mark = _FENCE.match(line) if markdown and line.lstrip()[:3] in ("```", "~~~") else None
        if fence and mark and not mark["info"].strip() and mark["mark"].startswith(fence):
            kinds.append(LineKind.FENCE)
            fence = ""
        elif not fence and mark and not (mark["mark"][0] == "`" and "`" in mark["info"]):
            kinds.append(LineKind.FENCE)
            fence = mark["mark"]
        elif not line or line.isspace():
            kinds.append(LineKind.BLANK)
        elif _NO_WORD.match(line):
            if not fence and _UNDERLINE.match(line) and _can_be_underlined(lines, kinds, i - 1):
                kinds[i - 1] = LineKind.HEADING
            kinds.append(LineKind.RULE)
        elif fence:
            kinds.append(LineKind.CODE)
        elif markdown and _ATX.match(line):
            kinds.append(LineKind.HEADING)
        else:
            kinds.append(LineKind.TEXT)
    if markdown and first_line == 1:
        _mark_front_matter(lines, kinds)
    return kinds


def title_of(line: str) -> str:
    """The title in a heading's line, without its marks; at most _MAX_TITLE_CHARS characters."""
    title = line.strip()
    if atx := _ATX.match(line):
        title = line[atx.end() :].strip()
        without_marks = title.rstrip("#")
        title = without_marks.rstrip() if without_marks.endswith((" ", "\t")) else title
    return title[:_MAX_TITLE_CHARS]


def _can_be_underlined(lines: Sequence[str], kinds: list[LineKind], i: int) -> bool:
    # A line of marks below a paragraph, a list or a table is not the underline of a title.
    if i < 0 or kinds[i] is not LineKind.TEXT or lines[i].lstrip()[0] in "|>-*+":
        return False
    return i == 0 or kinds[i - 1] is not LineKind.TEXT


def _mark_front_matter(lines: Sequence[str], kinds: list[LineKind]) -> None:
    if not lines or lines[0].rstrip() != "---":
        return
    for i in range(1, len(lines)):
        if lines[i].rstrip() in ("---", "..."):
            kinds[: i + 1] = [LineKind.CODE] * (i + 1)
            return
        if not lines[i].strip():
            return  # front matter has no blank line before its end: line 1 is only a rule
