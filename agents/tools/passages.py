"""Passages: citable parts of a document, and how a document is split into them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_CHARS = 1200
MAX_LINES = 25
"""Limits of a passage."""

TARGET_CHARS = 600
"""From this length on, or from half of its maximum lines, a passage ends at the next block."""

MIN_CHARS = 300
MIN_LINES = 5
"""A passage that reaches a limit is cut at its last block only if so much is left of it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive lines of one document.

    For every format, line i of `text` (from 0) is on line `line + i` of the document, as
    `agents.tools.readers.source_lines` returns them: for .txt the file's lines, for .md too but
    without comments, for HTML the visible text of the file's lines, for PDF the lines of the
    extracted text, counted over the whole document. A line is split only if it is longer than a
    passage.

    Attributes:
        file: path relative to the corpus folder, with "/" between its parts.
        line: number of the first line, from 1.
        end_line: number of the last line.
        text: the lines, joined by newlines.
        heading: nearest heading in or above the passage; "" without one.
        score: relevance to the query, higher is better; 0 if it is not a search result.
        page: page of a PDF, from 1; None for other formats.
    """

    file: str
    line: int
    end_line: int
    text: str
    heading: str = ""
    score: float = 0.0
    page: int | None = None


class Piece(NamedTuple):
    """A line of a document, or a part of one.

    Attributes:
        line: the line's number, from 1.
        text: without a line end; "" for a blank line.
        heading: the heading's title if this is (part of) a heading.
        starts_block: whether a paragraph or block begins here, so that a passage may begin here.
        glue: the text between this piece and the previous one on the same line.
        page: page of a PDF.
    """

    line: int
    text: str
    heading: str | None = None
    starts_block: bool = False
    glue: str = ""
    page: int | None = None


def split_into_passages(
    file: str, pieces: Iterable[Piece], *, max_lines: int = MAX_LINES
) -> Iterator[Passage]:
    """Split a document into passages: always at headings and pages, at blocks if possible.

    Args:
        file: the passages' file.
        pieces: the whole document in order; blank lines are kept within passages.
        max_lines: maximum number of lines of a passage.
    Returns:
        passages in order. None is blank, and each piece that is not blank is in exactly one, unless
        it is longer than MAX_CHARS.
    """
    heading = ""
    pending: list[Piece] = []
    num_chars = 0
    has_body = False
    for whole in pieces:
        for piece in _split_long(whole):
            if pending:
                num_kept = _num_pieces_kept(pending, num_chars, has_body, piece, max_lines)
                if num_kept < len(pending):
                    num_ended = len(pending) - num_kept
                    yield from _passage(file, pending[:num_ended], heading)
                    pending = pending[num_ended:]
                    num_chars = sum(len(kept.text) + 1 for kept in pending)
                    has_body = any(kept.heading is None and kept.text.strip() for kept in pending)
            if not pending and not piece.text.strip():
                continue
            if piece.heading is not None:
                heading = piece.heading
            elif piece.text.strip():
                has_body = True
            pending.append(piece)
            num_chars += len(piece.text) + 1
    yield from _passage(file, pending, heading)


def _num_pieces_kept(
    pending: list[Piece], num_chars: int, has_body: bool, piece: Piece, max_lines: int
) -> int:
    """The number of pending pieces, from the end, that may share a passage with the next piece."""
    first = pending[0]
    if piece.page != first.page or (piece.heading is not None and has_body):
        return 0
    num_lines = pending[-1].line - first.line + 1
    if piece.starts_block and (num_chars >= TARGET_CHARS or num_lines >= max_lines // 2):
        return 0
    too_long = num_chars + len(piece.text) > MAX_CHARS
    if not too_long and piece.line - first.line < max_lines:
        return len(pending)
    return _num_after_last_block(
        pending, room_chars=MAX_CHARS - len(piece.text), from_line=piece.line - max_lines + 1
    )


def _num_after_last_block(pending: list[Piece], *, room_chars: int, from_line: int) -> int:
    """The number of pieces in the last pending block; 0 if the passage should not end before it."""
    tail_chars = 0
    for i in range(len(pending) - 1, 0, -1):
        tail_chars += len(pending[i].text) + 1
        if tail_chars > room_chars or pending[i].line < from_line:
            return 0
        if pending[i].starts_block:
            head_chars = sum(len(piece.text) + 1 for piece in pending[:i])
            head_lines = pending[i - 1].line - pending[0].line + 1
            is_enough = head_chars >= MIN_CHARS or head_lines >= MIN_LINES
            return len(pending) - i if is_enough else 0
    return 0


def _passage(file: str, pieces: list[Piece], heading: str) -> Iterator[Passage]:
    last = len(pieces)
    while last and not pieces[last - 1].text.strip():
        last -= 1
    if not last:
        return
    first = pieces[0]
    parts = [first.text]
    for before, piece in pairwise(pieces[:last]):
        gap = piece.line - before.line
        parts.append("\n" * gap if gap else piece.glue)
        parts.append(piece.text)
    yield Passage(
        file=file,
        line=first.line,
        end_line=pieces[last - 1].line,
        text="".join(parts),
        heading=heading,
        page=first.page,
    )


def _split_long(piece: Piece) -> Iterator[Piece]:
    """The piece, or parts of it if it is longer than MAX_CHARS."""
    text = piece.text
    if len(text) <= MAX_CHARS:
        yield piece
        return
    start = 0
    while start < len(text):
        end = _end_of_part(text, start)
        yield piece._replace(
            text=text[start:end],
            starts_block=piece.starts_block and start == 0,
            glue=piece.glue if start == 0 else "",
        )
        start = end


def _end_of_part(text: str, start: int) -> int:
    """The end of a part of at most MAX_CHARS: after a sentence or a word if possible."""
    end = start + MAX_CHARS
    if end >= len(text):
        return len(text)
    for mark in (". ", " "):
        at = text.rfind(mark, start + MAX_CHARS // 2, end)
        if at >= 0:
            return at + len(mark)
    return end
