"""The one line of a passage that best answers a query, verbatim, to be quoted with its number."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agents.tools.outline import LineKind, line_kinds
from agents.tools.passages import Passage
from agents.tools.terms import query_terms, stem, words

MAX_QUOTE_CHARS = 300

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
_LEADING_MARKS = re.compile(r"\s*(?:(?:[-*+>]|\d{1,3}[.)])\s+)*")
_PENALTY = {LineKind.TEXT: 0.0, LineKind.CODE: 0.5}
# Fewer words than this seldom say anything when they stand alone.
_MIN_WORDS = 4


@dataclass(frozen=True, slots=True)
class Quote:
    """Words of a document.

    Attributes:
        line: number of the line they stand on.
        text: verbatim: a substring of that line.
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
    """The line of the passage that shares most with the query.

    A line longer than max_chars is quoted by its best sentence, or by a part of that. Headings,
    fences, blank lines and lines without a word are quoted only where there is nothing else.
    Among equals prose wins over code, then a whole statement over a scrap, then the first.

    Args:
        passage: from a search or a reader; its text is not blank.
        query: free text.
        max_chars: most characters of the quote, at least 1.
    """
    wanted = {stem(term) for term in query_terms(query)}
    candidates = list(_candidates(passage, max_chars, wanted))
    assert candidates, "a passage is never blank"
    # A term that half the passage repeats tells its lines apart less than a term said once.
    num_lines_with = {term: sum(term in c.words for c in candidates) for term in wanted}

    def rank(candidate: _Candidate) -> tuple[float, bool]:
        shared = wanted & candidate.words
        overlap = sum(1.0 + 1.0 / num_lines_with[term] for term in shared)
        return (round(overlap - candidate.penalty, 6), candidate.num_words >= _MIN_WORDS)

    best = max(candidates, key=rank)  # max keeps the first of equals
    return Quote(best.line, best.text)


def _candidates(passage: Passage, max_chars: int, wanted: set[str]) -> Iterator[_Candidate]:
    lines = passage.text.split("\n")
    markdown = passage.file.lower().endswith(".md")
    kinds = line_kinds(lines, markdown=markdown, first_line=passage.line)
    kinds = [
        LineKind.HEADING if kind is LineKind.TEXT and line.strip() == passage.heading else kind
        for kind, line in zip(kinds, lines, strict=True)
    ]
    sayable = [i for i, kind in enumerate(kinds) if kind in _PENALTY]
    for i in sayable or [i for i, line in enumerate(lines) if line.strip()]:
        for text in _quotable_parts(lines[i], max_chars, wanted):
            found = words(text)
            yield _Candidate(
                line=passage.line + i,
                text=text,
                words=frozenset(map(stem, found)),
                num_words=len(found),
                penalty=_PENALTY.get(kinds[i], 0.0),
            )


def _quotable_parts(line: str, max_chars: int, wanted: set[str]) -> Iterator[str]:
    marks = _LEADING_MARKS.match(line)
    text = line[marks.end() if marks else 0 :].rstrip() or line.strip()
    if len(text) <= max_chars:
        yield text
        return
    for part in _SENTENCE_END.split(text):
        sentence = part.strip()
        if len(sentence) > max_chars:
            yield _window(sentence, max_chars, wanted)
        elif sentence:
            yield sentence


def _window(sentence: str, max_chars: int, wanted: set[str]) -> str:
    """At most max_chars of a long sentence, around its first term, at spaces where possible."""
    lowered = sentence.lower()
    hits = [at for at in (lowered.find(term) for term in wanted) if at >= 0]
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
