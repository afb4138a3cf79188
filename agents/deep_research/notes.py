"""What was read: a note on one passage, and the words of it that can be quoted."""

from __future__ import annotations

from dataclasses import dataclass

from agents.tools.passages import Passage
from agents.tools.quoting import Quote


@dataclass(frozen=True, slots=True)
class Note:
    """One passage, read for one question.

    Attributes:
        number: of the source, from 1: in the order in which passages were found.
        text: what the model noted; the quote itself where it noted nothing.
        quote: a line of the passage, verbatim.
        relevant: as the model judged it.
    """

    number: int
    question: str
    passage: Passage
    quote: Quote
    text: str
    relevant: bool
