"""Extracts the visible text of each source line of an HTML document.

The parser is justhtml, which follows the HTML standard in what it does with broken markup. A tree
of nodes does not keep the line of a text that follows a dropped tag, so the lines are marked in the
source: see `_mark_lines`.
"""

import re
from collections.abc import Iterator

from justhtml import JustHTML, Node, Text

from agents.tools.passages import Piece

_HEADINGS = frozenset({"title", "h1", "h2", "h3", "h4", "h5", "h6"})
_INLINE = frozenset(
    """
    a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q ruby s samp
    small span strike strong sub sup time tt u var wbr
    """.split()  # noqa: SIM905 (one word a line would fill the file)
)
_INVISIBLE = frozenset({"#comment", "!doctype", "script", "style", "template", "iframe", "noembed"})

# Unicode reserves U+FDD0 to U+FDEF for internal use: no document contains them.
_RESERVED = re.compile("[\ufdd0-\ufdef]")
_MARK = re.compile("\ufdef([\ufdd0-\ufddf]+)")
_FIRST_DIGIT = 0xFDD0
# References to reserved characters, and to line ends, which would shift the numbers of later lines.
_REFERENCE = re.compile(
    r"&(?:#0*(?:1[03]|6497[6-9]|649[89][0-9]|6500[0-7])(?![0-9]);?"
    r"|#[xX]0*(?:[aAdD]|[fF][dD][dDeE][0-9a-fA-F])(?![0-9a-fA-F]);?|NewLine;)"
)


def html_pieces(lines: list[str]) -> list[Piece]:
    """The visible text of an HTML document, without scripts, styles and comments.

    Args:
        lines: the source, split into lines.
    Returns:
        pieces; `line` is the source line of their text. White space within a piece is reduced to
        single spaces. A block begins a new piece, also in the middle of a line.
    """
    # Without scripting, because then the content of <noscript> is visible.
    document = JustHTML(_mark_lines(lines), sanitize=False, scripting_enabled=False)
    text = _VisibleText()
    # A stack instead of recursion; a string is the name of an element that ends.
    pending: list[Node | Text | str] = [document.root]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            text.end_element(node)
        elif isinstance(node, Text):
            for line, part in _marked_parts(node.data or ""):
                text.add(line, part)
        elif node.name not in _INVISIBLE:
            text.start_element(node.name)
            pending.append(node.name)
            pending.extend(reversed(node.children or ()))
    return text.pieces()


def _mark_lines(lines: list[str]) -> str:
    """The source with the number of its line after each ">", where a text can begin.

    In a tag or comment that is not yet closed a mark is a part of its content and has no effect.
    """
    marked = [_mark(1)]
    for number, line in enumerate(lines, start=1):
        plain = _REFERENCE.sub(" ", _RESERVED.sub("\ufffd", line))
        marked.append(plain.replace(">", f">{_mark(number)}"))
        marked.append("\n")
    return "".join(marked)


def _mark(line: int) -> str:
    return "\ufdef" + "".join(chr(_FIRST_DIGIT + int(digit, 16)) for digit in f"{line:x}")


def _marked_parts(data: str) -> Iterator[tuple[int, str]]:
    """The parts of a text, each on one source line, with the line's number."""
    before, *marked = _MARK.split(data)
    assert not before.strip(), "each text follows a mark"
    for digits, text in zip(marked[::2], marked[1::2], strict=True):
        line = int("".join(f"{ord(digit) - _FIRST_DIGIT:x}" for digit in digits), 16)
        # A tag that the parser dropped in the middle of a text, such as <td> outside of a table,
        # separates words. After ">" itself a mark is in the middle of a text.
        if before and before[-1] != ">":
            yield line, " "
        for offset, part in enumerate(text.split("\n")):
            yield line + offset, part
        before = text


class _Fragment:
    """The text of one block on one line; `parts` grows while it is parsed."""

    __slots__ = ("heading", "line", "parts", "starts_block")

    def __init__(self, line: int, *, starts_block: bool, heading: int | None) -> None:
        self.line = line
        self.starts_block = starts_block
        self.heading = heading  # number of the heading that it is a part of
        self.parts: list[str] = []


class _VisibleText:
    """Collects the fragments of a document."""

    def __init__(self) -> None:
        self._fragments: list[_Fragment] = []
        self._num_headings = 0
        self._heading: int | None = None
        self._block_begins = True

    def start_element(self, name: str) -> None:
        if name in _HEADINGS:
            self._num_headings += 1
            self._heading = self._num_headings
        if name not in _INLINE:
            self._block_begins = True

    def end_element(self, name: str) -> None:
        if name not in _INLINE:
            # Any block's end ends a heading, so that an unclosed one does not include the page.
            self._heading = None
            self._block_begins = True

    def add(self, line: int, text: str) -> None:
        """Add a text on one line."""
        if text.strip():
            self._fragment(line).parts.append(text)
        elif text and self._fragments and self._fragments[-1].line == line:
            self._fragments[-1].parts.append(" ")

    def _fragment(self, line: int) -> _Fragment:
        """The current fragment; a new one for another line or at the beginning of a block."""
        if self._block_begins or not self._fragments or self._fragments[-1].line != line:
            fragment = _Fragment(line, starts_block=self._block_begins, heading=self._heading)
            self._fragments.append(fragment)
            self._block_begins = False
        return self._fragments[-1]

    def pieces(self) -> list[Piece]:
        """All pieces in the order of their lines: the parser moves text out of tables."""
        self._fragments.sort(key=lambda fragment: fragment.line)
        texts = [" ".join("".join(fragment.parts).split()) for fragment in self._fragments]
        titles: dict[int, str] = {}
        for fragment, text in zip(self._fragments, texts, strict=True):
            if fragment.heading is not None:
                before = titles.get(fragment.heading)
                titles[fragment.heading] = text if before is None else f"{before} {text}"
        return [
            Piece(
                line=fragment.line,
                text=text,
                heading=None if fragment.heading is None else titles[fragment.heading],
                starts_block=fragment.starts_block,
                glue=" ",
            )
            for fragment, text in zip(self._fragments, texts, strict=True)
        ]
