"""Notes: what the model wrote about a passage, with a verbatim quote of it."""

from __future__ import annotations

from dataclasses import dataclass

from agents.tools.passages import Passage
from agents.tools.quoting import Quote


@dataclass(frozen=True, slots=True)
class Note:
    """The model's note on one passage, read for one question.

    Attributes:
        number: of the source, from 1, in the order in which passages were found.
        text: the model's note; the quote itself if the model has not read the passage.
        quote: a line of the passage, verbatim.
        relevant: whether the model judged the passage relevant.
    """

    number: int
    question: str
    passage: Passage
    quote: Quote
    text: str
    relevant: bool
