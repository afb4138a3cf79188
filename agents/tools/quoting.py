"""Selects the line of a passage that matches a query best, as a verbatim quote with its number."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agents.tools.outline import LineKind, line_kinds
from agents.tools.passages import Passage
from agents.tools.terms import query_terms, stem, words

MAX_QUOTE_CHARS = 300
"""Maximum length of a quote, by default."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
_LEADING_MARKS = re.compile(r"\s*(?:(?:[-*+>]|\d{1,3}[.)])\s+)*")
_COMMENT = re.compile(r"<!--.*?-->")
_PENALTY = {LineKind.TEXT: 0.0, LineKind.CODE: 0.5}
# A text with fewer words is rarely a statement.
_MIN_WORDS = 4


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote from a document.

    Attributes:
        line: number of the quoted line.
        text: a substring of that line.
    """

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    line: int
    text: str
    words: frozenset[str]
    num_words: int
    penalty: float


def quote_line(passage: Passage, query: str, *, max_chars: int = MAX_QUOTE_CHARS) -> Quote:
    """The line of the passage that shares most terms with the query.

    Of a line longer than max_chars the best sentence is quoted, or a part of it. Headings, fences,
    blank lines and lines without words are quoted only if there is nothing else. Prose is preferred
    to equally good code; of equal lines those with _MIN_WORDS words are preferred, then the first.

    Args:
        passage: from a search or a reader; its text is not blank.
        query: free text.
        max_chars: maximum length of the quote, at least 1.
    """
    terms = {stem(term) for term in query_terms(query)}
    candidates = list(_candidates(passage, max_chars, terms))
    assert candidates, "a passage is never blank"
    # A term that many lines contain distinguishes them less than a term in one line.
    num_lines_with = {term: sum(term in c.words for c in candidates) for term in terms}

    def rank(candidate: _Candidate) -> tuple[float, bool]:
        shared = terms & candidate.words
        overlap = sum(1.0 + 1.0 / num_lines_with[term] for term in shared)
        return (round(overlap - candidate.penalty, 6), candidate.num_words >= _MIN_WORDS)

    best = max(candidates, key=rank)  # max returns the first of equal ones
    return Quote(best.line, best.text)


def _candidates(passage: Passage, max_chars: int, terms: set[str]) -> Iterator[_Candidate]:
    lines = passage.text.split("\n")
    markdown = passage.file.lower().endswith(".md")
    kinds = line_kinds(lines, markdown=markdown, first_line=passage.line)
    kinds = [
        LineKind.HEADING if kind is LineKind.TEXT and line.strip() == passage.heading else kind
        for kind, line in zip(kinds, lines, strict=True)
    ]
    statements = [i for i, kind in enumerate(kinds) if kind in _PENALTY]
    for i in statements or [i for i, line in enumerate(lines) if line.strip()]:
        for text in _quotable_parts(lines[i], max_chars, terms, markdown=markdown):
            words_of_text = words(text)
            yield _Candidate(
                line=passage.line + i,
                text=text,
                words=frozenset(map(stem, words_of_text)),
                num_words=len(words_of_text),
                penalty=_PENALTY.get(kinds[i], 0.0),
            )


def _quotable_parts(line: str, max_chars: int, terms: set[str], *, markdown: bool) -> Iterator[str]:
    marks = _LEADING_MARKS.match(line)
    text = line[marks.end() if marks else 0 :].rstrip() or line.strip()
    around_comments = _COMMENT.split(text) if markdown else []
    for shown in [part.strip() for part in around_comments if part.strip()] or [text]:
        yield from _sentences(shown, max_chars, terms)


def _sentences(text: str, max_chars: int, terms: set[str]) -> Iterator[str]:
    """The text, or the sentences of one that is longer than max_chars."""
    if len(text) <= max_chars:
        yield text
        return
    for part in _SENTENCE_END.split(text):
        sentence = part.strip()
        if len(sentence) > max_chars:
            yield _window(sentence, max_chars, terms)
        elif sentence:
            yield sentence


def _window(sentence: str, max_chars: int, terms: set[str]) -> str:
    """At most max_chars of a long sentence, around its first term, cut at spaces if possible."""
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
