"""Deep research with a large model: it plans, notes, reflects and writes, in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from agents.deep_research import prompts
from agents.deep_research.notes import Note, Reading
from agents.deep_research.report import Report, written_report
from agents.deep_research.support import shares_words
from agents.tools.passages import Passage
from agents.tools.quoting import best_quote
from agents.tools.sentences import ended
from orchestrator import llm


async def plan(question: str, width: int) -> list[str]:
    """The model's sub-questions."""
    answer = await llm(
        prompts.plan_prompt(question, width),
        system=prompts.SYSTEM,
        schema=prompts.plan_of(width),
        max_tokens=160 * width,
    )
    return answer.questions


async def read(question: str, passage: Passage) -> Reading:
    """The model's note, with the quote that supports it best.

    A note that shares no word with its passage makes that irrelevant.
    """
    reading = await llm(
        prompts.read_prompt(question, passage),
        system=prompts.SYSTEM,
        schema=prompts.Reading,
        max_tokens=400,
    )
    note = ended(reading.note, prompts.NOTE_CHARS).strip()
    if not shares_words(note, f"{passage.heading} {passage.text}"):
        return Reading(best_quote(passage, question), "", relevant=False)
    return Reading(best_quote(passage, note), note, reading.relevant)


async def reflect(question: str, width: int, sources: Sequence[Note]) -> list[str]:
    """The model's further questions; none if the notes are enough."""
    answer = await llm(
        prompts.reflect_prompt(question, sources, width),
        system=prompts.SYSTEM,
        schema=prompts.reflection_of(width),
        max_tokens=160 * width + 40,
    )
    return [] if answer.enough else answer.questions


async def write(question: str, sources: Sequence[Note], rounds: int, cut: Sequence[str]) -> Report:
    """The report as the model writes it; its schema allows only citations of real sources."""
    draft = await llm(
        prompts.write_prompt(question, sources),
        system=prompts.SYSTEM,
        schema=prompts.draft_from(len(sources)),
        max_tokens=2000,
    )
    return written_report(question, draft, sources, rounds=rounds, cut=cut)
