"""The report, and its forms in Markdown and JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass

from agents.deep_research.notes import Note
from agents.deep_research.prompts import Draft
from orchestrator.durations import shown
from orchestrator.runtime.results import RunResult
from serving.generation import EngineInfo

RANDOM_WEIGHTS = (
    "The model's weights are random: the text below is meaningless. "
    "The sources and quotes are real."
)

TITLE_CHARS = 120
"""Maximum length of a title that is made from a question."""

_RANGE = r"\s*[0-9]{1,4}(?:\s*[-\u2013]\s*[0-9]{1,4})?\s*"
# Marks of sources, such as [1], [1, 3] and [2-4]; neither links nor what is in `code`.
_MARKS = re.compile(
    rf"`[^`]*`|(?P<space>\s?)[\[\u3010](?P<numbers>{_RANGE}(?:,{_RANGE})*)[\]\u3011](?!\()"
)


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote from a document: `quote` is a part of line `line` of `file`."""

    number: int
    file: str
    line: int
    quote: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report.

    Attributes:
        text: marks of sources in it, such as [1], are also in `citations`.
        citations: numbers of sources.
    """

    heading: str
    text: str
    citations: tuple[int, ...]


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

    Marks in the text count as citations; marks that name no source are dropped.
    """
    known = {note.number for note in notes}
    sections = []
    for section in draft.sections:
        text = _keep_marks(_printable(section.text).strip(), known)
        sections.append(
            Section(
                heading=_one_line(_keep_marks(section.heading, set())),
                text=text,
                citations=tuple(dict.fromkeys([*section.citations, *_marked_numbers(text)])),
            )
        )
    cited = {number for section in sections for number in section.citations}
    return Report(
        question=question,
        title=_one_line(_keep_marks(draft.title, set())),
        sections=tuple(sections),
        citations=tuple(_citation(note) for note in notes if note.number in cited),
        rounds=rounds,
        cut=tuple(cut),
    )


def assembled_report(
    question: str, notes: Sequence[Note], *, rounds: int, cut: Sequence[str]
) -> Report:
    """A report that lists the notes by question: used if the model could not write one."""
    by_question: dict[str, list[Note]] = {}
    for note in notes:
        by_question.setdefault(note.question, []).append(note)
    sections = tuple(
        Section(
            heading=_title_of(asked),
            text="\n".join(
                f"- {_one_line(_keep_marks(note.text, set()))} [{note.number}]" for note in group
            ),
            citations=tuple(note.number for note in group),
        )
        for asked, group in by_question.items()
    )
    nothing = Section("Nothing found", "No passage of the documents matched the question.", ())
    return Report(
        question=question,
        title=_title_of(question),
        sections=sections or (nothing,),
        citations=tuple(_citation(note) for note in notes),
        rounds=rounds,
        cut=tuple(cut),
    )


def to_markdown(result: RunResult[Report], info: EngineInfo) -> str:
    """The report as a Markdown document."""
    report = result.value
    parts = [f"# {report.title}", f"*Question: {_one_line(report.question)}*"]
    if info.random_weights:
        parts.append(f"> **{RANDOM_WEIGHTS}**")
    elif info.caveat:
        parts.append(f"> **{info.model}, {info.caveat}.**")
    for section in report.sections:
        marked = _marked_numbers(section.text)
        marks = "".join(f"[{number}]" for number in section.citations if number not in marked)
        parts.append(f"## {section.heading}")
        parts.append(f"{section.text} {marks}".rstrip())
    if report.citations:
        parts.append("## Sources")
        parts.append("\n".join(_source_line(citation) for citation in report.citations))
    if report.cut:
        parts.append("## Left out")
        parts.append("\n".join(f"- {_one_line(sentence)}" for sentence in report.cut))
    parts.append("---")
    parts.append(_footer(result, info))
    return "\n\n".join(parts) + "\n"


def to_json(result: RunResult[Report], info: EngineInfo) -> dict[str, object]:
    """The report as a JSON object; times are in seconds."""
    report = result.value
    return {
        "question": report.question,
        "report": to_markdown(result, info),
        "citations": [asdict(citation) for citation in report.citations],
        "rounds": report.rounds,
        "cut": list(report.cut),
        "run_id": result.run_id,
        "deadline_s": result.deadline_s,
        "elapsed_s": result.elapsed_s,
        "in_time": result.in_time,
        "stages": [asdict(stage) for stage in result.stages],
        "engine": asdict(info),
    }


def _footer(result: RunResult[Report], info: EngineInfo) -> str:
    deadline = "no deadline"
    if result.deadline_s is not None:
        met = "in time for" if result.in_time else "late for"
        deadline = f"{met} its deadline of {shown(result.deadline_s)}"
    model = f"{info.model} (random weights)" if info.random_weights else info.model
    return (
        f"Run `{result.run_id}`: {shown(result.elapsed_s)}, {deadline}; "
        f"{len(result.stages)} stages, model {model}, engine {info.name}."
    )


def _source_line(citation: Citation) -> str:
    file, quote = _one_line(citation.file), _printable(citation.quote)
    return f'[{citation.number}] `{file}:{citation.line}`: "{quote}"  '


def _citation(note: Note) -> Citation:
    return Citation(note.number, note.passage.file, note.quote.line, note.quote.text)


def _keep_marks(text: str, known: Set[int]) -> str:
    """The text with only the marks of known sources, each in its own brackets."""

    def kept(match: re.Match[str]) -> str:
        if match["numbers"] is None:
            return match[0]
        numbers = _numbers(match["numbers"])
        marks = "".join(f"[{number}]" for number in numbers if number in known)
        return f"{match['space']}{marks}" if marks else ""

    return _MARKS.sub(kept, text)


def _marked_numbers(text: str) -> list[int]:
    listed = [match["numbers"] for match in _MARKS.finditer(text) if match["numbers"]]
    return [number for numbers in listed for number in _numbers(numbers)]


def _numbers(listed: str) -> list[int]:
    """The numbers of a mark: "1, 3-5" gives 1, 3, 4, 5."""
    numbers: list[int] = []
    for part in listed.split(","):
        first, _, last = part.replace("\u2013", "-").partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _title_of(question: str) -> str:
    title = _one_line(question)
    return title if len(title) <= TITLE_CHARS else f"{title[:TITLE_CHARS].rstrip()} ..."


def _one_line(text: str) -> str:
    return " ".join(_printable(text).split()) or "-"


def _printable(text: str) -> str:
    """The text without control characters, so that it cannot send commands to a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else " " for character in text
    )
