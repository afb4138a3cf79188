"""HTML -> the visible text of each source line.

The standard library's parser is used directly: the trees built on it (BeautifulSoup's among
them) keep the line of a tag but lose the line of the text after it, and a citation needs that.
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
# A line end written as a character reference would shift every later line of its text.
_LINE_END_REFERENCE = re.compile(
    r"&(?:#0*1[03](?![0-9]);?|#[xX]0*[aAdD](?![0-9a-fA-F]);?|NewLine;)"
)
# The parser asserts on an unknown marked section; browsers read any of them as a comment.
_MARKED_SECTION = re.compile(r"<!\[")
_UNSEEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|template)\b[^>]*>.*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_NEVER_A_TAG = re.compile(r"<(?=[^<>\"']*<)")


def html_pieces(lines: list[str]) -> list[Piece]:
    """The visible text of an HTML document; scripts, styles and comments left out.

    Args:
        lines: the source, split into lines.
    Returns:
        Pieces whose `line` is the source line on which their text stands. White space within a
        piece is single spaces. A block begins a new piece, also in the middle of a line.
    """
    parser = _VisibleText()
    parser.feed(_tame("\n".join(lines)))
    parser.close()
    return parser.pieces()


def _tame(source: str) -> str:
    """The same lines without what is unseen, and without what the parser takes ages for.

    Its time grows with the square (and worse) of the number of tags and comments left open, so
    that 100 kB of "<a " keep it busy for minutes. Every expression here is linear.
    """
    source = _LINE_END_REFERENCE.sub(" ", source)
    source = _UNSEEN.sub(lambda unseen: "\n" * unseen[0].count("\n"), _close_last_tag(source))
    source = _NEVER_A_TAG.sub("&lt;", _MARKED_SECTION.sub("<!_", source))
    return _close_last_tag(source)


def _close_last_tag(source: str) -> str:
    last = source.rfind(">") + 1
    return source[:last] + source[last:].replace("<", "&lt;")


class _Run:
    """Text of one block on one line, still growing."""

    __slots__ = ("heading", "line", "parts", "starts_block")

    def __init__(self, line: int, *, starts_block: bool, heading: int | None) -> None:
        self.line = line
        self.starts_block = starts_block
        self.heading = heading  # which heading of the document it belongs to
        self.parts: list[str] = []


class _VisibleText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._runs: list[_Run] = []
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
            # Any block's end ends a heading, so that one left open does not swallow the page.
            self._heading = None
            self._block_begins = True

    def handle_data(self, data: str) -> None:
        line, _ = self.getpos()
        for offset, text in enumerate(data.split("\n")):
            if text.strip():
                self._run(line + offset).parts.append(text)
            elif text and self._runs and self._runs[-1].line == line + offset:
                self._runs[-1].parts.append(" ")

    def _run(self, line: int) -> _Run:
        if self._block_begins or not self._runs or self._runs[-1].line != line:
            run = _Run(line, starts_block=self._block_begins, heading=self._heading)
            self._runs.append(run)
            self._block_begins = False
        return self._runs[-1]

    def pieces(self) -> list[Piece]:
        texts = [" ".join("".join(run.parts).split()) for run in self._runs]
        titles: dict[int, str] = {}
        for run, text in zip(self._runs, texts, strict=True):
            if run.heading is not None:
                before = titles.get(run.heading)
                titles[run.heading] = text if before is None else f"{before} {text}"
        return [
            Piece(
                line=run.line,
                text=text,
                heading=None if run.heading is None else titles[run.heading],
                starts_block=run.starts_block,
                glue=" ",
            )
            for run, text in zip(self._runs, texts, strict=True)
        ]
