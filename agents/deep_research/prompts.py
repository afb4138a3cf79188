"""What the model is asked, and the shape that its answers must have.

Every text is bounded: a bound on the schema is a bound on the call's length, which the deadline
is divided by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from agents.deep_research.notes import Note
from agents.tools.passages import Passage

SYSTEM = (
    "You research questions in a folder of documents. Rely on the passages you are given and on "
    "nothing else. Answer in the JSON form that is asked for."
)

Question = Annotated[str, Field(min_length=8, max_length=160)]


class Reading(BaseModel):
    """What one passage says to one question."""

    relevant: bool
    note: str = Field(min_length=8, max_length=320)


def questions_schema(width: int) -> dict[str, Any]:
    """JSON schema of a plan: one to `width` sub-questions."""
    return _object(questions=_list(_text(8, 160), 1, width))


def reflection_schema(width: int) -> dict[str, Any]:
    """JSON schema of a reflection: enough, or up to `width` further questions."""
    return _object(enough={"type": "boolean"}, questions=_list(_text(8, 160), 0, width))


def draft_schema(num_sources: int) -> dict[str, Any]:
    """JSON schema of a report whose citations can only be numbers of real sources."""
    number = {"type": "integer", "enum": list(range(1, num_sources + 1))}
    section = _object(
        heading=_text(3, 80), text=_text(40, 700), citations=_list(number, 1, min(num_sources, 6))
    )
    return _object(title=_text(8, 100), sections=_list(section, 1, 4))


def plan_prompt(question: str, width: int) -> str:
    """Ask for sub-questions."""
    return (
        f"Question: {question}\n\n"
        f"Break it into at most {width} sub-questions that can each be looked up on its own. "
        "Use the words that documents about it would use."
    )


def read_prompt(question: str, passage: Passage) -> str:
    """Ask what one passage says to one question."""
    return (
        f"Question: {question}\n\n"
        f"Passage from {passage.file}, lines {passage.line} to {passage.end_line}"
        f"{f', under the heading {passage.heading!r}' if passage.heading else ''}:\n"
        f"{passage.text}\n\n"
        "Is it relevant to the question? Note in a sentence or two what it says to it."
    )


def reflect_prompt(question: str, notes: Sequence[Note], width: int) -> str:
    """Ask whether the notes are enough."""
    return (
        f"Question: {question}\n\nNotes so far:\n{_listed(notes)}\n\n"
        "Are they enough to answer the question? If not, ask at most "
        f"{width} further sub-questions about what is missing."
    )


def write_prompt(question: str, notes: Sequence[Note]) -> str:
    """Ask for the report."""
    return (
        f"Question: {question}\n\nNotes, each with the number of its source:\n{_listed(notes)}\n\n"
        "Write a report that answers the question: a title, and sections with a heading, a text, "
        "and the numbers of the sources that the text rests on."
    )


def _listed(notes: Sequence[Note]) -> str:
    return "\n".join(f"[{note.number}] {note.text} (quote: {note.quote.text})" for note in notes)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(shortest: int, longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def _list(items: Any, fewest: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": fewest, "maxItems": most}
