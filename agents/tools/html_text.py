"""Extracts the visible text of each source line of an HTML document.

It uses the standard library's parser directly. Tree builders such as BeautifulSoup keep the line of
a tag but not the line of the text after it, which a citation needs.
"""

import re
from html.parser import HTMLParser

from agents.tools.passages import Piece

_HEADINGS = frozenset({"title", "h1", "h2", "h3", "h4", "h5", "h6"})
_INLINE = frozenset(
    """
    a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q ruby s samp
    small span strike strong sub sup time tt u var wbr
    """.split()  # noqa: SIM905 (one word a line would fill the file)
)
# A line end written as a character reference would shift the numbers of all later lines.
_LINE_END_REFERENCE = re.compile(
    r"&(?:#0*1[03](?![0-9]);?|#[xX]0*[aAdD](?![0-9a-fA-F]);?|NewLine;)"
)
# The parser fails on an unknown marked section; browsers treat it as a comment.
_MARKED_SECTION = re.compile(r"<!\[")
_INVISIBLE = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|template)\b[^>]*>.*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_NOT_A_TAG = re.compile(r"<(?=[^<>\"']*<)")


def html_pieces(lines: list[str]) -> list[Piece]:
    """The visible text of an HTML document, without scripts, styles and comments.

    Args:
        lines: the source, split into lines.
    Returns:
        pieces; `line` is the source line of their text. White space within a piece is reduced to
        single spaces. A block begins a new piece, also in the middle of a line.
    """
    parser = _VisibleText()
    parser.feed(_cleaned("\n".join(lines)))
    parser.close()
    return parser.pieces()


def _cleaned(source: str) -> str:
    """The same lines without invisible parts and without input for which the parser is slow.

    The parser's time is at least quadratic in the number of unclosed tags and comments: 100 kB of
    "<a " take minutes. The regular expressions here take linear time.
    """
    source = _LINE_END_REFERENCE.sub(" ", source)
    source = _INVISIBLE.sub(lambda match: "\n" * match[0].count("\n"), _escape_last_tag(source))
    source = _NOT_A_TAG.sub("&lt;", _MARKED_SECTION.sub("<!_", source))
    return _escape_last_tag(source)


def _escape_last_tag(source: str) -> str:
    """Escape tags that are not closed before the end of the document."""
    last = source.rfind(">") + 1
    return source[:last] + source[last:].replace("<", "&lt;")


class _Fragment:
    """The text of one block on one line; `parts` grows while it is parsed."""

    __slots__ = ("heading", "line", "parts", "starts_block")

    def __init__(self, line: int, *, starts_block: bool, heading: int | None) -> None:
        self.line = line
        self.starts_block = starts_block
        self.heading = heading  # number of the heading that it is a part of
        self.parts: list[str] = []


class _VisibleText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._fragments: list[_Fragment] = []
        self._num_headings = 0
        self._heading: int | None = None
        self._block_begins = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HEADINGS:
            self._num_headings += 1
            self._heading = self._num_headings
        if tag not in _INLINE:
            self._block_begins = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _INLINE:
            self._block_begins = True

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            # Any block's end ends a heading, so that an unclosed one does not include the page.
            self._heading = None
            self._block_begins = True

    def handle_data(self, data: str) -> None:
        line, _ = self.getpos()
        for offset, text in enumerate(data.split("\n")):
            if text.strip():
                self._fragment(line + offset).parts.append(text)
            elif text and self._fragments and self._fragments[-1].line == line + offset:
                self._fragments[-1].parts.append(" ")

    def _fragment(self, line: int) -> _Fragment:
        """The current fragment; a new one for another line or at the beginning of a block."""
        if self._block_begins or not self._fragments or self._fragments[-1].line != line:
            fragment = _Fragment(line, starts_block=self._block_begins, heading=self._heading)
            self._fragments.append(fragment)
            self._block_begins = False
        return self._fragments[-1]

    def pieces(self) -> list[Piece]:
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
