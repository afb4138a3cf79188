"""Deep research: plan; rounds of search, read and reflect; write a report by the deadline.

If time is short, rounds are left out, not the report: a share of the time is reserved for writing.
If that is too short as well, the report is assembled from the notes, with their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from agents.deep_research import prompts
from agents.deep_research.notes import Note
from agents.deep_research.report import Report, assembled_report, written_report
from agents.tools.corpus import Corpus
from agents.tools.near_duplicates import DistinctPassages
from agents.tools.passages import Passage
from agents.tools.quoting import best_quote
from orchestrator import DeadlineExceeded, flow, gather, has_deadline, llm, remaining, step, tool
from orchestrator import within as time_limit
from orchestrator.durations import shown
from serving.errors import (
    PromptTooLong,
    RequestDropped,
    RequestFailed,
    StructuredOutputInvalid,
)

DEFAULT_ROUNDS = 2
DEFAULT_WIDTH = 3
SOURCES_PER_QUESTION = 3
RESEARCH_SHARE = 0.6
"""Share of the time left at the start for searching and reading; the rest is for the report."""
WRITING_SHARE = 0.95
"""Share of the time then left for the model to write; the rest is for assembling the notes."""

CALL_FAILURES = (StructuredOutputInvalid, PromptTooLong, RequestDropped, RequestFailed)
"""Errors of a single LLM call that do not end the run: its step continues without the answer."""


def expected_stages(rounds: int) -> int:
    """The number of stages of a run: plan, three in each round, write."""
    return 2 + 3 * rounds


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions to look up next; `cut` says why they are not the model's, "" if they are."""

    asked: tuple[str, ...]
    cut: str = ""


@dataclass(slots=True)
class Findings:
    """The results so far; they survive when the time for research runs out.

    Attributes:
        passages: those that have been read or are being read.
        rounds: rounds that were completed.
        cut: sentences about what was left out, and why.
    """

    notes: list[Note] = field(default_factory=list)
    passages: DistinctPassages = field(default_factory=DistinctPassages)
    rounds: int = 0
    cut: list[str] = field(default_factory=list)

    def accept(self, questions: Questions) -> Sequence[str]:
        """Record what was left out, if anything, and return the questions."""
        if questions.cut:
            self.cut.append(questions.cut)
        return questions.asked

    def sources(self) -> list[Note]:
        """The notes for the report, numbered from 1; irrelevant ones only if all of them are."""
        ordered = sorted(self.notes, key=lambda note: note.number)
        kept = [note for note in ordered if note.relevant] or ordered
        return [replace(note, number=number) for number, note in enumerate(kept, start=1)]


@flow(name="deep-research", stages=expected_stages(DEFAULT_ROUNDS))
async def deep_research(
    question: Annotated[str, Field(pattern=r"\S")],
    corpus: Corpus,
    *,
    rounds: Annotated[int, Field(ge=1, le=20)] = DEFAULT_ROUNDS,
    width: Annotated[int, Field(ge=1, le=20)] = DEFAULT_WIDTH,
) -> Report:
    """Research a question in a folder of documents; the report cites their lines.

    Args:
        question: what you want to know.
        corpus: a folder of documents: .md, .txt, .html, .pdf.
        rounds: maximum number of rounds of searching and reading.
        width: maximum number of questions that the model adds in a round.
    """
    assert rounds >= 1, "a report needs a round"
    assert width >= 1, "a round needs a question"
    findings = Findings()
    if has_deadline():
        research_s = RESEARCH_SHARE * remaining()
        try:
            async with time_limit(research_s):
                await investigate(question, corpus, findings, rounds, width)
        except DeadlineExceeded:
            findings.cut.append(
                f"Searching and reading stopped after {shown(research_s)}, in round "
                f"{findings.rounds + 1} of {rounds}, to leave time for the report."
            )
    else:
        await investigate(question, corpus, findings, rounds, width)
    return await conclude(question, corpus, findings)


async def investigate(
    question: str, corpus: Corpus, findings: Findings, rounds: int, width: int
) -> None:
    """Search and read, round by round, until the notes are enough or no round is left."""
    questions = findings.accept(await plan(question, width))
    for number in range(1, rounds + 1):
        before_s = remaining()
        await search_and_read(questions, corpus, findings)
        questions = []
        if findings.notes:
            questions = findings.accept(await reflect(question, width, findings.sources()))
        findings.rounds = number
        took_s = before_s - remaining()
        if not questions or number == rounds:
            return
        if remaining() < took_s:
            findings.cut.append(
                f"Round {number + 1} was left out: the last took {shown(took_s)}, and "
                f"{shown(remaining())} were left for it."
            )
            return


async def search_and_read(questions: Sequence[str], corpus: Corpus, findings: Findings) -> None:
    """Search for all questions in parallel, then read all new passages in parallel.

    Each note is added to the findings at once, in case the time runs out before the others.
    """
    results = await gather(*(search(corpus, asked) for asked in questions))

    async def note(asked: str, passage: Passage, number: int) -> None:
        reading = await read(asked, passage, number)
        if isinstance(reading, Note):
            findings.notes.append(reading)
        else:
            findings.cut.append(reading)

    readings = [
        note(asked, passage, len(findings.passages))
        for asked, passages in zip(questions, results, strict=True)
        for passage in passages
        if findings.passages.add(passage)
    ]
    await gather(*readings)


@step
async def plan(question: str, width: int) -> Questions:
    """The questions to look up: the question itself, and the model's sub-questions."""
    try:
        answer = await llm(
            prompts.plan_prompt(question, width),
            system=prompts.SYSTEM,
            schema=prompts.plan_of(width),
            max_tokens=160 * width,
        )
    except CALL_FAILURES as error:
        return Questions((question,), f"The question was not divided: {error}.")
    return Questions(tuple(dict.fromkeys([question, *answer.questions])))


@tool(effects="pure")
def search(corpus: Corpus, question: str) -> list[Passage]:
    """The passages that match a question best."""
    return corpus.search(question, SOURCES_PER_QUESTION, per_file=2, distinct=True)


@step
async def read(question: str, passage: Passage, number: int) -> Note | str:
    """The model's note on a passage for a question; if the call fails, a sentence that says why."""
    try:
        reading = await llm(
            prompts.read_prompt(question, passage),
            system=prompts.SYSTEM,
            schema=prompts.Reading,
            max_tokens=400,
        )
    except CALL_FAILURES as error:
        return f"{passage.file}:{passage.line} was not read: {error}."
    quote = best_quote(passage, question)
    return Note(number, question, passage, quote, reading.note, reading.relevant)


@step
async def reflect(question: str, width: int, sources: Sequence[Note]) -> Questions:
    """The model's further questions to look up; none if the notes are enough."""
    try:
        answer = await llm(
            prompts.reflect_prompt(question, sources, width),
            system=prompts.SYSTEM,
            schema=prompts.reflection_of(width),
            max_tokens=160 * width + 40,
        )
    except CALL_FAILURES as error:
        return Questions((), f"The notes were not reflected on: {error}.")
    return Questions(() if answer.enough else tuple(dict.fromkeys(answer.questions)))


async def conclude(question: str, corpus: Corpus, findings: Findings) -> Report:
    """The report: written by the model if there is time, otherwise assembled from the notes."""
    if not findings.notes:
        findings.notes = await unread_sources(question, corpus)
    sources = findings.sources()
    if sources and any(note.text != note.quote.text for note in sources):
        rounds, cut = findings.rounds, tuple(findings.cut)
        try:
            if not has_deadline():
                return await write(question, sources, rounds, cut)
            async with time_limit(WRITING_SHARE * remaining()):
                return await write(question, sources, rounds, cut)
        except DeadlineExceeded:
            findings.cut.append("The model had no time to write: these are the notes themselves.")
        except CALL_FAILURES as error:
            findings.cut.append(f"The model wrote no report ({error}): these are the notes.")
    return assembled_report(question, sources, rounds=findings.rounds, cut=findings.cut)


async def unread_sources(question: str, corpus: Corpus) -> list[Note]:
    """The best passages for the question, not read by the model: used if there are no notes."""
    notes = []
    for number, passage in enumerate(await search(corpus, question), start=1):
        quote = best_quote(passage, question)
        notes.append(Note(number, question, passage, quote, quote.text, relevant=True))
    return notes


@step
async def write(question: str, sources: Sequence[Note], rounds: int, cut: Sequence[str]) -> Report:
    """The report as the model writes it; its schema allows only citations of real sources."""
    draft = await llm(
        prompts.write_prompt(question, sources),
        system=prompts.SYSTEM,
        schema=prompts.draft_from(len(sources)),
        max_tokens=2000,
    )
    return written_report(question, draft, sources, rounds=rounds, cut=cut)
