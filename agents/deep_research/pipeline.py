"""Deep research: plan; rounds of search, read and reflect; write a report by the deadline.

If time is short, rounds and passages are left out, not the report: each stage has a share of the
time, and what was done by its end is used. If the model has no time to write, the report consists
of the quotes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from agents.deep_research.notes import Note
from agents.deep_research.profiles import PROFILES, ProfileName, profile_for
from agents.deep_research.report import Report, quoted_report
from agents.tools.corpus import Corpus
from agents.tools.near_duplicates import DistinctPassages
from agents.tools.passages import Passage
from agents.tools.quoting import best_quote
from orchestrator import DeadlineExceeded, flow, gather, has_deadline, remaining, step, tool
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

RESEARCH_SHARE = 0.7
"""Share of the time left at the start for planning, searching and reading."""
PLAN_SHARE = 0.2
READ_SHARE = 0.7
REFLECT_SHARE = 0.7
"""Shares of the time then left for research, of which the next stage has the rest."""
ROUND_LEFT_OUT = 0.5
"""A round is left out if less than this share of the last one's time is left for it."""
WRITE_SHARE = 0.95
RESERVE_S = 0.2
"""Share of the time then left for the model to write; the rest, at least RESERVE_S, is for putting
the quotes together and recording the report, which takes 10 ms, more on a busy machine."""

CALL_FAILURES = (StructuredOutputInvalid, PromptTooLong, RequestDropped, RequestFailed)
"""Errors of a single LLM call that do not end the run: its step continues without the answer."""


def expected_stages(rounds: int) -> int:
    """The number of stages of a run: plan; search and read each round; reflect between; write."""
    return 1 + 3 * rounds


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
    profile: Literal["auto", "small", "large"] = "auto",
) -> Report:
    """Research a question in a folder of documents; the report cites their lines.

    Args:
        question: what you want to know.
        corpus: a folder of documents: .md, .txt, .html, .pdf.
        rounds: maximum number of rounds of searching and reading.
        width: maximum number of questions that the model adds in a round.
        profile: how the model is asked. small: short prompts and plain text; the report consists of
            quotes, and of sentences that they support. large: the model plans, takes notes and
            writes the report, in JSON. auto: small below 2 billion parameters.
    """
    assert rounds >= 1, "a report needs a round"
    assert width >= 1, "a round needs a question"
    chosen = await profile_for(profile)
    findings = Findings()
    try:
        async with share_of_time(RESEARCH_SHARE):
            await investigate(chosen, question, corpus, findings, rounds, width)
    except DeadlineExceeded:
        findings.cut.append(
            f"Searching and reading stopped in round {findings.rounds + 1} of {rounds}, to leave "
            "time for the report."
        )
    return await conclude(chosen, question, corpus, findings)


@asynccontextmanager
async def share_of_time(share: float, *, reserve_s: float = 0.0) -> AsyncIterator[None]:
    """Limit a block to a share of the time that is left, so that at least `reserve_s` remain.

    Raises:
        DeadlineExceeded: the block's time is over.
    """
    if not has_deadline():
        yield
        return
    left_s = remaining()
    limit_s = min(share * left_s, left_s - reserve_s)
    async with time_limit(max(limit_s, 0.001)):  # a duration is above 0
        yield


async def investigate(
    profile: ProfileName,
    question: str,
    corpus: Corpus,
    findings: Findings,
    rounds: int,
    width: int,
) -> None:
    """Search and read, round by round, until the notes are enough or no round is left."""
    questions: Sequence[str] = (question,)
    try:
        async with share_of_time(PLAN_SHARE):
            questions = findings.accept(await plan(profile, question, width))
    except DeadlineExceeded:
        findings.cut.append(
            "The question was not divided: it took longer than its share of the time."
        )
    for number in range(1, rounds + 1):
        before_s, known = remaining(), len(findings.passages)
        try:
            async with share_of_time(READ_SHARE if number < rounds else 1.0):
                await search_and_read(profile, questions, corpus, findings)
        except DeadlineExceeded:
            num_found = len(findings.passages) - known
            findings.cut.append(
                f"Reading stopped in round {number} of {rounds} after "
                f"{shown(before_s - remaining())}: not all of {num_found} passages were read."
            )
        else:
            findings.rounds = number
        if number == rounds or not findings.notes:
            return
        took_s = before_s - remaining()
        if remaining() < ROUND_LEFT_OUT * took_s:
            findings.cut.append(
                f"Round {number + 1} was left out: the last took {shown(took_s)}, and "
                f"{shown(remaining())} were left for it."
            )
            return
        questions = ()
        try:
            async with share_of_time(REFLECT_SHARE):
                sources = findings.sources()
                questions = findings.accept(await reflect(profile, question, width, sources))
        except DeadlineExceeded:
            findings.cut.append(
                "The notes were not reflected on: it took longer than its share of the time."
            )
        if not questions:
            return


async def search_and_read(
    profile: ProfileName, questions: Sequence[str], corpus: Corpus, findings: Findings
) -> None:
    """Search for all questions in parallel, then read all new passages in parallel.

    Each note is added to the findings at once, in case the time runs out before the others.
    """
    count = PROFILES[profile].sources_per_question
    results = await gather(*(search(corpus, asked, count) for asked in questions))

    async def note(asked: str, passage: Passage, number: int) -> None:
        reading = await read(profile, asked, passage, number)
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
async def plan(profile: ProfileName, question: str, width: int) -> Questions:
    """The questions to look up: the question itself, and the model's sub-questions."""
    try:
        asked = await PROFILES[profile].plan(question, width)
    except CALL_FAILURES as error:
        return Questions((question,), f"The question was not divided: {error}.")
    return Questions(tuple(dict.fromkeys([question, *asked])))


@tool(effects="pure")
def search(corpus: Corpus, question: str, count: int) -> list[Passage]:
    """The passages that match a question best."""
    return corpus.search(question, count, per_file=2, distinct=True)


@step
async def read(profile: ProfileName, question: str, passage: Passage, number: int) -> Note | str:
    """The model's note on a passage for a question; if the call fails, a sentence that says why."""
    try:
        quote, text, relevant = await PROFILES[profile].read(question, passage)
    except CALL_FAILURES as error:
        return f"{passage.file}:{passage.line} was not read: {error}."
    return Note(number, question, passage, quote, text, relevant)


@step
async def reflect(
    profile: ProfileName, question: str, width: int, sources: Sequence[Note]
) -> Questions:
    """The model's further questions to look up; none if the notes are enough."""
    try:
        asked = await PROFILES[profile].reflect(question, width, sources)
    except CALL_FAILURES as error:
        return Questions((), f"The notes were not reflected on: {error}.")
    return Questions(tuple(dict.fromkeys(asked)))


async def conclude(
    profile: ProfileName, question: str, corpus: Corpus, findings: Findings
) -> Report:
    """The report: written by the model if there is time, otherwise the quotes."""
    if not findings.notes:
        findings.notes = await unread_sources(profile, question, corpus)
    sources = findings.sources()
    if sources:
        rounds, cut = findings.rounds, tuple(findings.cut)
        try:
            async with share_of_time(WRITE_SHARE, reserve_s=RESERVE_S):
                return await write(profile, question, sources, rounds, cut)
        except DeadlineExceeded:
            findings.cut.append("The model had no time to write: these are the quotes.")
        except CALL_FAILURES as error:
            findings.cut.append(f"The model wrote no report ({error}): these are the quotes.")
    return quoted_report(question, sources, rounds=findings.rounds, cut=findings.cut)


async def unread_sources(profile: ProfileName, question: str, corpus: Corpus) -> list[Note]:
    """The best passages for the question, not read by the model: used if there are no notes."""
    passages = await search(corpus, question, PROFILES[profile].sources_per_question)
    return [
        Note(number, question, passage, best_quote(passage, question), "", relevant=True)
        for number, passage in enumerate(passages, start=1)
    ]


@step
async def write(
    profile: ProfileName,
    question: str,
    sources: Sequence[Note],
    rounds: int,
    cut: Sequence[str],
) -> Report:
    """The report with what the model writes of it."""
    return await PROFILES[profile].write(question, sources, rounds, cut)
