"""The prompts for a large model, and the schemas of its answers.

Every text in a schema has a maximum length: that limits the length of the answer, and so its time.
The docstrings of the models are descriptions in their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from agents.deep_research.notes import Note
from agents.tools.passages import Passage

# All prompts begin with it. It fills a block of the engine's prefix cache (128 tokens on a CPU).
SYSTEM = (
    "You research a question in a folder of documents, together with a program that searches them. "
    "First you divide the question. Then you read passages, one at a time, and note what each says "
    "to the question. Then you judge whether the notes are enough. At last you write a report.\n"
    "Rely on the passages and notes you are given and on nothing else: what they do not say is not "
    "known. Use their words for the things they speak of. Keep numbers, units and names as they "
    "are. If passages disagree, say so. Be brief: say each thing once, in whole sentences, without "
    "an introduction or a summary. Cite sources by their numbers only.\n"
    "Answer in the JSON form that is asked for."
)

NOTE_CHARS = 320
TEXT_CHARS = 700
"""Limits of a note and of a section's text: an answer that reaches one was cut."""

Question = Annotated[str, Field(min_length=8, max_length=160)]


class Reading(BaseModel):
    """What one passage says to one question."""

    relevant: bool
    note: str = Field(min_length=8, max_length=NOTE_CHARS)


class Plan(BaseModel):
    """What to look up."""

    questions: list[Question]


class Reflection(BaseModel):
    """Whether the notes are enough; if not, what to look up next."""

    enough: bool
    questions: list[Question]


class DraftSection(BaseModel):
    """A part of a report; citations are numbers of sources."""

    heading: str = Field(min_length=3, max_length=80)
    text: str = Field(min_length=40, max_length=TEXT_CHARS)
    citations: list[int]


class Draft(BaseModel):
    """A report as the model writes it."""

    title: str = Field(min_length=8, max_length=100)
    sections: list[DraftSection] = Field(min_length=1, max_length=4)


def plan_of(width: int) -> type[Plan]:
    """The schema of a plan with 1 to `width` sub-questions."""
    return create_model("Plan", __base__=Plan, questions=_list_of(Question, 1, width))


def reflection_of(width: int) -> type[Reflection]:
    """The schema of a reflection with up to `width` further questions."""
    return create_model("Reflection", __base__=Reflection, questions=_list_of(Question, 0, width))


def draft_from(num_sources: int) -> type[Draft]:
    """The schema of a draft in which citations can only be numbers of real sources."""
    number = Literal[tuple(range(1, num_sources + 1))]  # type: ignore[valid-type]
    section = create_model(
        "DraftSection",
        __base__=DraftSection,
        citations=_list_of(number, 1, min(num_sources, 6)),
    )
    return create_model("Draft", __base__=Draft, sections=_list_of(section, 1, 4))


def plan_prompt(question: str, width: int) -> str:
    """The prompt for sub-questions."""
    return (
        f"Question: {question}\n\n"
        f"Break it into at most {width} sub-questions that can each be looked up on its own. "
        "Use the words that documents about it would use."
    )


def read_prompt(question: str, passage: Passage) -> str:
    """The prompt for a note on one passage for one question."""
    return (
        f"Question: {question}\n\n"
        f"Passage from {passage.file}, lines {passage.line} to {passage.end_line}"
        f"{f', under the heading {passage.heading!r}' if passage.heading else ''}:\n"
        f"{passage.text}\n\n"
        "Is it relevant to the question? Note in a sentence or two what it says to it."
    )


def reflect_prompt(question: str, notes: Sequence[Note], width: int) -> str:
    """The prompt for a judgement whether the notes are enough."""
    return (
        f"Question: {question}\n\nNotes so far:\n{_listed(notes)}\n\n"
        "Are they enough to answer the question? If not, ask at most "
        f"{width} further sub-questions about what is missing."
    )


def write_prompt(question: str, notes: Sequence[Note]) -> str:
    """The prompt for the report."""
    return (
        f"Question: {question}\n\nNotes, each with the number of its source:\n{_listed(notes)}\n\n"
        "Write a report that answers the question: a title, and sections with a heading, a text, "
        "and the numbers of the sources that the text rests on."
    )


def _listed(notes: Sequence[Note]) -> str:
    return "\n".join(
        f"[{note.number}] {note.text} (quote: {note.quote.text})".replace("  ", " ")
        for note in notes
    )


def _list_of(item: Any, min_length: int, max_length: int) -> Any:
    return Annotated[list[item], Field(min_length=min_length, max_length=max_length)]
