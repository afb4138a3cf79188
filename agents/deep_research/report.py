"""The report: what the model drafted, or the quotes by section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agents.deep_research.marks import keep_marks, marked_numbers, one_line, printable
from agents.deep_research.notes import Note
from agents.deep_research.prompts import TEXT_CHARS, Draft
from agents.deep_research.support import overlap, plain_words, shares_words
from agents.tools.sentences import ended, sentences
from agents.tools.terms import content_words, query_terms, stem, words

TITLE_CHARS = 120
"""Maximum length of a title that is made from a question."""

MAX_SECTIONS = 5
QUOTES_PER_SECTION = 2
"""Limits of a report that consists of quotes: the best are shown."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote from a document.

    Attributes:
        line: number of the line of `file` in which the quote begins.
        quote: a part of that line; of a sentence over several lines, these joined by spaces.
        end_line: number of the line in which it ends.
    """

    number: int
    file: str
    line: int
    quote: str
    end_line: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report.

    Attributes:
        text: the model's; marks of sources in it, such as [1], are also in `citations`.
        citations: numbers of sources.
        quotes: those of the citations that are quoted in the section, before its text.
    """

    heading: str
    text: str
    citations: tuple[int, ...]
    quotes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a question.

    Attributes:
        rounds: completed rounds of searching and reading.
        cut: sentences about what was left out, and why; empty if nothing was.
    """

    question: str
    title: str
    sections: tuple[Section, ...]
    citations: tuple[Citation, ...]
    rounds: int
    cut: tuple[str, ...] = ()


def written_report(
    question: str, draft: Draft, notes: Sequence[Note], *, rounds: int, cut: Sequence[str]
) -> Report:
    """The report that the model drafted, with the sources that it cites.

    Marks in the text count as citations. Of those only sources are kept that support the section:
    their note or quote shares a word with it. If none does, the source that shares most words.
    """
    sections: list[Section] = []
    unsupported = []
    for section in draft.sections:
        written = f"{section.heading} {section.text}"
        supporting = {note.number: overlap(_claim_of(note), written) for note in notes}
        known = {number for number, shared in supporting.items() if shared}
        text = keep_marks(ended(printable(section.text), TEXT_CHARS).strip(), known)
        cited = dict.fromkeys([*section.citations, *marked_numbers(text)])
        kept = tuple(number for number in cited if number in known)
        if not kept and known:
            kept = (max(supporting, key=lambda number: supporting[number]),)
        heading = one_line(keep_marks(section.heading, set()))
        if not kept:
            unsupported.append(f"No source supports the section {heading!r}.")
        sections.append(Section(heading, text, kept))
    return Report(
        question=question,
        title=one_line(keep_marks(draft.title, set())),
        sections=tuple(sections),
        citations=_citations(notes, sections),
        rounds=rounds,
        cut=(*cut, *unsupported),
    )


def quoted_report(
    question: str, notes: Sequence[Note], *, rounds: int, cut: Sequence[str]
) -> Report:
    """A report of quotes by section, each with what the model said about it.

    The quote that shares most words with the question comes first, then the others by the same
    measure. A section's heading shares a word with each of its quotes, if there is such a heading.
    """
    sections: list[Section] = []
    sources: list[Note] = []
    said: set[str] = set()
    for heading, group in _best_by_heading(notes, question).items():
        numbered = [replace(n, number=i) for i, n in enumerate(group, start=len(sources) + 1)]
        cited = tuple(note.number for note in numbered)
        texts = [(note.text, note.number) for note in numbered]
        sections.append(Section(heading, _marked(texts, said), cited, quotes=cited))
        sources += numbered
    if not sections:
        nothing = "No passage of the documents matched the question."
        sections = [Section("Nothing found", nothing, ())]
    return Report(
        question=question,
        title=_title_of(question),
        sections=tuple(sections),
        citations=_citations(sources, sections),
        rounds=rounds,
        cut=tuple(cut),
    )


def _best_by_heading(notes: Sequence[Note], question: str) -> dict[str, list[Note]]:
    """The best notes, each quote once, by a heading that shares a word with the quote."""
    groups: dict[str, list[Note]] = {}
    shown: set[str] = set()
    ranked = by_relevance(notes, question)
    for note in ranked:
        heading, quote = _heading_of(note, question), plain_words(note.quote.text)
        is_full = len(groups.get(heading, ())) >= QUOTES_PER_SECTION
        has_place = heading in groups or len(groups) < MAX_SECTIONS
        if heading and has_place and not is_full and quote not in shown:
            groups.setdefault(heading, []).append(note)
            shown.add(quote)
    if ranked and not groups:  # the words of the question are in the passages' headings only
        best = ranked[0]
        groups[_title_of(best.passage.heading or best.passage.file)] = [best]
    return groups


def by_relevance(notes: Sequence[Note], question: str) -> list[Note]:
    """The notes whose quotes share most words with the question first; a rare word counts more.

    A row of a table counts a word less, as in the choice of a quote.
    """
    found = [content_words(note.quote.text) for note in notes]
    value = {
        word: 1.0 + 1.0 / max(sum(word in each for each in found), 1)
        for word in content_words(question)
    }

    def relevance(at: int) -> float:
        # Rounded: the sum of a set differs in its last bits from process to process.
        shared = sum(value[word] for word in found[at] & value.keys())
        return round(shared - notes[at].quote.text.startswith("|"), 6)

    return [notes[at] for at in sorted(range(len(notes)), key=lambda at: -relevance(at))]


def _heading_of(note: Note, question: str) -> str:
    """A heading that shares a word with the note's quote, or "".

    The passage's heading, or the sub-question, or the passage's heading with the words that quote
    and question share.
    """
    quote, heading = note.quote.text, _title_of(keep_marks(note.passage.heading, set()))
    if shares_words(heading, quote):
        return heading
    if note.question != question and shares_words(note.question, quote):
        return _title_of(note.question)
    in_quote = {stem(word) for word in words(quote)}
    terms = [term for term in query_terms(question) if stem(term) in in_quote]
    shared = ", ".join([term for term in terms if content_words(term)] or terms)
    if not shared:
        return ""
    if note.passage.heading:
        return _title_of(f"{heading}: {shared}")
    return _title_of(shared[:1].upper() + shared[1:])


def _marked(texts: Iterable[tuple[str, int]], said: set[str]) -> str:
    """Texts with the marks of their sources, without sentences that have been said."""
    parts = []
    for text, number in texts:
        new = [each for each in sentences(keep_marks(one_line(text), set())) if each not in said]
        said.update(new)
        if new:
            parts.append(f"{' '.join(new)} [{number}]")
    return " ".join(parts)


def _claim_of(note: Note) -> str:
    return f"{note.passage.heading} {note.quote.text} {note.text}"


def _citations(notes: Sequence[Note], sections: Iterable[Section]) -> tuple[Citation, ...]:
    cited = {number for section in sections for number in section.citations}
    return tuple(_citation(note) for note in notes if note.number in cited)


def _citation(note: Note) -> Citation:
    quote = note.quote
    return Citation(note.number, note.passage.file, quote.line, quote.text, quote.end_line)


def _title_of(text: str) -> str:
    return ended(one_line(text)[: TITLE_CHARS + 1], TITLE_CHARS + 1)
