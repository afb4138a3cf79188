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
_COMMENT_BEGIN, _COMMENT_END = re.compile(r" {0,3}<!--"), "-->"
_FRONT_MATTER_ENDS = {"---": ("---", "..."), "+++": ("+++",)}  # YAML, TOML
_FRONT_MATTER_KEY = re.compile(r"#|[\w\"'.-]+\s*[:=]")
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
        open_fence = _fence_after(line, fence) if markdown else ""
        if open_fence != fence:
            kinds.append(LineKind.FENCE)
            fence = open_fence
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


def hide_comments(lines: Sequence[str]) -> list[str]:
    """The lines of a Markdown document without the comments that begin a line.

    They are invisible when the document is rendered, also if they contain "#" lines. What follows
    a comment on its last line is kept; a comment that never ends is none.
    """
    last_end = max((i for i, line in enumerate(lines) if _COMMENT_END in line), default=-1)
    shown = []
    fence = ""
    in_comment = False
    for i, line in enumerate(lines):
        if not in_comment:
            fence = _fence_after(line, fence)
            in_comment = not fence and i <= last_end and _COMMENT_BEGIN.match(line) is not None
        if in_comment:
            _, end, rest = line.partition(_COMMENT_END)
            in_comment = not end
            shown.append(rest)
        else:
            shown.append(line)
    return shown


def title_of(line: str) -> str:
    """The title in a heading's line, without its marks; at most _MAX_TITLE_CHARS characters."""
    title = line.strip()
    if atx := _ATX.match(line):
        title = line[atx.end() :].strip()
        without_marks = title.rstrip("#")
        title = without_marks.rstrip() if without_marks.endswith((" ", "\t")) else title
    return title[:_MAX_TITLE_CHARS]


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open after a line, "" for none, given the one before it."""
    mark = _FENCE.match(line) if line.lstrip()[:3] in ("```", "~~~") else None
    if mark is None:
        return fence
    if fence:
        closes = not mark["info"].strip() and mark["mark"].startswith(fence)
        return "" if closes else fence
    is_inline_code = mark["mark"][0] == "`" and "`" in mark["info"]
    return "" if is_inline_code else mark["mark"]


def _can_be_underlined(lines: Sequence[str], kinds: list[LineKind], i: int) -> bool:
    # A line of marks below a paragraph, a list or a table is not the underline of a title.
    if i < 0 or kinds[i] is not LineKind.TEXT or lines[i].lstrip()[0] in "|>-*+":
        return False
    return i == 0 or kinds[i - 1] is not LineKind.TEXT


def _mark_front_matter(lines: Sequence[str], kinds: list[LineKind]) -> None:
    ends = _FRONT_MATTER_ENDS.get(lines[0].rstrip()) if len(lines) > 1 else None
    if ends is None:
        return
    # Without a key below it, line 1 may be only a rule, and the next one far below another.
    has_key = _FRONT_MATTER_KEY.match(lines[1]) is not None
    for i in range(1, len(lines)):
        if lines[i].rstrip() in ends:
            kinds[: i + 1] = [LineKind.CODE] * (i + 1)
            return
        if not lines[i].strip() and not has_key:
            return
