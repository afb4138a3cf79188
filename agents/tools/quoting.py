"""Selects the sentence of a passage that matches a query best, as a verbatim quote."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agents.tools.outline import LineKind, line_kinds
from agents.tools.passages import Passage
from agents.tools.sentences import sentence_spans
from agents.tools.terms import content_words, query_terms, stem, words

MAX_QUOTE_CHARS = 400
"""Maximum length of a quote, by default."""

_LEADING_MARKS = re.compile(r"\s*(?:(?:[-*+>]|\d{1,3}[.)])\s+)*")
_COMMENT = re.compile(r"<!--.*?-->")
_PENALTY = {LineKind.TEXT: 0.0, LineKind.CODE: 0.5}
_ROW_PENALTY = _FRAGMENT_PENALTY = 1.0
"""For a row of a table, which says little without its head, and for a part of a sentence."""
_IN_SENTENCE = re.compile(r"[a-z]+\b|[,;:)]")
# A text with fewer words is rarely a statement.
_MIN_WORDS = 4


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote from a document: a sentence, or a part of one.

    Attributes:
        line: number of the line where it begins.
        text: a substring of that line; of a sentence over several lines, these without their
            indents, joined by spaces.
        end_line: number of the line where it ends.
    """

    line: int
    text: str
    end_line: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    quote: Quote
    words: frozenset[str]
    num_words: int
    penalty: float


@dataclass(frozen=True, slots=True)
class _Part:
    """A line, or a part of one, without the marks of lists and quotations."""

    line: int
    text: str
    penalty: float


def best_quote(passage: Passage, query: str, *, max_chars: int = MAX_QUOTE_CHARS) -> Quote:
    """The sentence of the passage that shares most terms with the query.

    A sentence may go over several lines. Of one that is longer than max_chars the best line is
    quoted, or a part of it. Headings, fences, blank lines and lines without words are quoted only
    if there is nothing else, and heads of tables. Whole sentences are preferred to equally good
    parts, code and rows of tables; of equal sentences those with _MIN_WORDS words are preferred,
    then those that share a word with the passage's heading, then the first.

    Args:
        passage: from a search or a reader; its text is not blank.
        query: free text.
        max_chars: maximum length of the quote, at least 1.
    """
    terms = {stem(term) for term in query_terms(query)}
    candidates = [
        _Candidate(quote, frozenset(map(stem, found)), len(found), penalty)
        for quote, penalty in _quotes(passage, max_chars, terms)
        for found in [words(quote.text)]
    ]
    assert candidates, "a passage is never blank"
    # A term that many sentences contain distinguishes them less than a term in one.
    num_with = {term: sum(term in c.words for c in candidates) for term in terms}

    about = content_words(passage.heading)

    def rank(candidate: _Candidate) -> tuple[float, bool, bool]:
        shared = terms & candidate.words
        overlap = sum(1.0 + 1.0 / num_with[term] for term in shared)
        is_statement = candidate.num_words >= _MIN_WORDS
        is_about_heading = not about.isdisjoint(candidate.words)
        return (round(overlap - candidate.penalty, 6), is_statement, is_about_heading)

    return max(candidates, key=rank).quote  # max returns the first of equal ones


def _quotes(passage: Passage, max_chars: int, terms: set[str]) -> Iterator[tuple[Quote, float]]:
    """What can be quoted of a passage, and the penalty of each."""
    for paragraph in _paragraphs(passage):
        text = " ".join(part.text for part in paragraph)
        penalty = paragraph[0].penalty
        lines = _lines_of(paragraph)
        for start, end in sentence_spans(text):
            is_fragment = not start and _begins_within_a_sentence(passage, text)
            if end - start <= max_chars:
                quote = Quote(lines[start], text[start:end], lines[end - 1])
                yield quote, penalty + _FRAGMENT_PENALTY * is_fragment
                continue
            at = 0
            for part in paragraph:
                first, last = max(at, start), min(at + len(part.text), end)
                at += len(part.text) + 1
                if first < last:
                    window = _window(text[first:last], max_chars, terms)
                    is_fragment = first > start or not text[first:last].startswith(window)
                    yield (
                        Quote(part.line, window, part.line),
                        penalty + _FRAGMENT_PENALTY * is_fragment,
                    )


def _begins_within_a_sentence(passage: Passage, paragraph: str) -> bool:
    """Whether this is the passage's first paragraph, and its beginning is in another passage."""
    is_first = passage.line > 1 and passage.text.lstrip().startswith(paragraph[:20])
    return is_first and _IN_SENTENCE.match(paragraph) is not None


def _paragraphs(passage: Passage) -> Iterator[list[_Part]]:
    """The passage's prose, a list a paragraph; each line of code and each row is its own."""
    lines = passage.text.split("\n")
    markdown = passage.file.lower().endswith(".md")
    kinds = line_kinds(lines, markdown=markdown, first_line=passage.line)
    kinds = [
        LineKind.HEADING if kind is LineKind.TEXT and line.strip() == passage.heading else kind
        for kind, line in zip(kinds, lines, strict=True)
    ]
    statements = [
        i for i, kind in enumerate(kinds) if kind in _PENALTY and not _is_head(lines, kinds, i)
    ]
    paragraph: list[_Part] = []
    previous = -1
    for i in statements or [i for i, line in enumerate(lines) if line.strip()]:
        is_row = lines[i].lstrip().startswith("|")
        penalty = _PENALTY.get(kinds[i], 0.0) or (_ROW_PENALTY if is_row else 0.0)
        marks = _LEADING_MARKS.match(lines[i])
        text = lines[i][marks.end() if marks else 0 :].rstrip() or lines[i].strip()
        around_comments = _COMMENT.split(text) if markdown else [text]
        continues = (
            i == previous + 1
            and kinds[i] is LineKind.TEXT
            and not (penalty or (paragraph and paragraph[0].penalty))
            and lines[i].strip() == text.strip()
        )
        previous = i
        for number, piece in enumerate(around_comments):
            if paragraph and (number or not continues):
                yield paragraph
                paragraph = []
            if piece.strip():
                paragraph.append(_Part(passage.line + i, piece.strip(), penalty))
        if not paragraph and not any(piece.strip() for piece in around_comments):
            yield [_Part(passage.line + i, text, penalty)]
    if paragraph:
        yield paragraph


def _is_head(lines: Sequence[str], kinds: Sequence[LineKind], i: int) -> bool:
    """Whether a line is the head of a table: a line of dashes follows it."""
    is_row = lines[i].lstrip().startswith("|") and i + 1 < len(lines)
    return is_row and kinds[i + 1] is LineKind.RULE and lines[i + 1].lstrip().startswith("|")


def _lines_of(paragraph: list[_Part]) -> list[int]:
    """The line of each character of a paragraph whose parts are joined by spaces."""
    return [part.line for part in paragraph for _ in range(len(part.text) + 1)]


def _window(sentence: str, max_chars: int, terms: set[str]) -> str:
    """At most max_chars of a long sentence, around its first term, cut at spaces if possible."""
    if len(sentence) <= max_chars:
        return sentence
    lowered = sentence.lower()
    hits = [index for index in (lowered.find(term) for term in terms) if index >= 0]
    start = max(0, min(hits) - max_chars // 3) if hits else 0
    start = min(start, len(sentence) - max_chars)
    end = start + max_chars
    if start:
        space = sentence.find(" ", start, start + max_chars // 4)
        start = space + 1 if space >= 0 else start
    if end < len(sentence):
        space = sentence.rfind(" ", end - max_chars // 4, end)
        end = space if space > start else end
    return sentence[start:end].strip() or sentence[:max_chars].strip()
