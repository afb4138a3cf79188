"""Readers: from a file's bytes to its passages, and to the lines that citations refer to."""

import logging
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pypdf
from pypdf.errors import PyPdfError

from agents.tools.character_encoding import decode
from agents.tools.errors import Unreadable
from agents.tools.html_text import html_pieces
from agents.tools.outline import LineKind, hide_comments, line_kinds, title_of
from agents.tools.passages import MAX_LINES, Passage, Piece, split_into_passages

SUFFIXES = (".md", ".txt", ".html", ".htm", ".pdf")

_LINE_END = re.compile(r"\r\n|\n|\r")
# In HTML the same text takes more lines, because of markup on separate lines.
_MAX_HTML_LINES = 3 * MAX_LINES


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading one file.

    Attributes:
        passages: in the file's order, at least one.
        warning: which parts could not be read, or which encoding was only detected; "" without.
    """

    passages: tuple[Passage, ...]
    warning: str = ""


def read_document(data: bytes, file: str) -> Reading:
    """The passages of one file.

    Args:
        data: the file's bytes.
        file: the passages' file; its suffix decides how the bytes are read.
    Raises:
        Unreadable: binary, empty, broken or encrypted, or a suffix outside SUFFIXES.
        MemoryError: the process has reached its limit of memory.
    """
    pieces, warning = _pieces(data, Path(file).suffix.lower())
    max_lines = _MAX_HTML_LINES if file.lower().endswith((".html", ".htm")) else MAX_LINES
    passages = tuple(split_into_passages(file, pieces, max_lines=max_lines))
    if not passages:
        raise Unreadable("it contains no text")
    return Reading(passages, warning)


def source_lines(path: Path) -> list[str]:
    """The lines that the line numbers of passages refer to; line n is at index n - 1.

    For .txt these are the file's lines, for .md too but without comments, for HTML the visible text
    of each of the file's lines, for PDF the lines of the extracted text. Use it to check a
    citation.

    Raises:
        Unreadable: as read_document.
        OSError: the file cannot be read.
    """
    lines: list[str] = []
    for piece in _pieces(path.read_bytes(), path.suffix.lower())[0]:
        if piece.line == len(lines):
            lines[-1] += piece.glue + piece.text
            continue
        lines.extend([""] * (piece.line - len(lines) - 1))
        lines.append(piece.text)
    return lines


def split_lines(text: str) -> list[str]:
    r"""Lines as open() and editors count them: only "\n", "\r\n" and "\r" end a line."""
    lines = _LINE_END.split(text) if "\r" in text else text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def _pieces(data: bytes, suffix: str) -> tuple[list[Piece], str]:
    if suffix == ".pdf":
        return _pdf_pieces(data)
    if suffix in (".html", ".htm"):
        text, warning = decode(data, html=True)
        return html_pieces(split_lines(text)), warning
    if suffix in (".md", ".txt"):
        text, warning = decode(data)
        return _text_pieces(split_lines(text), markdown=suffix == ".md"), warning
    raise Unreadable(f"{suffix or 'a file without a suffix'} is not one of {', '.join(SUFFIXES)}")


def _text_pieces(lines: list[str], *, markdown: bool) -> list[Piece]:
    if markdown:
        lines = hide_comments(lines)
    pieces = []
    after_blank = True
    for i, kind in enumerate(line_kinds(lines, markdown=markdown)):
        heading = title_of(lines[i]) if kind is LineKind.HEADING else None
        pieces.append(Piece(i + 1, lines[i], heading, starts_block=after_blank))
        after_blank = kind is LineKind.BLANK
    return pieces


def _pdf_pieces(data: bytes) -> tuple[list[Piece], str]:
    reader, num_pages = _open_pdf(data)
    pieces: list[Piece] = []
    failed = []
    num_lines = 0
    for number in range(1, num_pages + 1):
        try:
            text = reader.pages[number - 1].extract_text()
        except MemoryError:  # a limit of the document, not a fault of the page
            raise
        except Exception as error:  # as above
            failed.append(f"page {number} ({type(error).__name__}: {error})")
            continue
        lines = split_lines(_replace_unstorable(text))
        pieces.extend(_page_pieces(lines, page=number, num_lines_before=num_lines))
        num_lines += len(lines)
    if num_pages and len(failed) == num_pages:
        raise Unreadable(f"none of its pages can be read: {failed[0]}")
    if not pieces:
        raise Unreadable("it contains no text (scanned pages need OCR first)")
    return pieces, f"not read: {', '.join(failed)}" if failed else ""


def _open_pdf(data: bytes) -> tuple[pypdf.PdfReader, int]:
    """A reader, and its number of pages."""
    # pypdf logs its repairs; without a handler of the caller they would be printed on stderr.
    logger = logging.getLogger("pypdf")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    try:
        reader = pypdf.PdfReader(BytesIO(data))
        # Many files are encrypted with an empty password, to restrict printing only.
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("it is encrypted and needs a password")
        return reader, len(reader.pages)
    except (Unreadable, MemoryError):
        raise
    except PyPdfError as error:
        raise Unreadable(f"it is a broken or encrypted PDF ({error})") from error
    except Exception as error:  # for a broken file pypdf may raise any exception
        raise Unreadable(f"it is a broken PDF ({type(error).__name__}: {error})") from error


def _page_pieces(lines: list[str], *, page: int, num_lines_before: int) -> list[Piece]:
    return [
        Piece(num_lines_before + i + 1, line, None, i == 0 or not lines[i - 1].strip(), "", page)
        for i, line in enumerate(lines)
    ]


def _replace_unstorable(text: str) -> str:
    # Extracted text may have lone surrogates and NULs, which UTF-8 or SQLite cannot store.
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
