"""Notes: what the model wrote about a passage, with a verbatim quote of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agents.tools.passages import Passage
from agents.tools.quoting import Quote


@dataclass(frozen=True, slots=True)
class Note:
    """The model's note on one passage, read for one question.

    Attributes:
        number: of the source, from 1, in the order in which passages were found.
        quote: a sentence of the passage, verbatim.
        text: the model's note; "" if the model has not read the passage, or wrote nothing usable.
        relevant: whether the passage was judged relevant.
    """

    number: int
    question: str
    passage: Passage
    quote: Quote
    text: str
    relevant: bool


class Reading(NamedTuple):
    """What the model read in a passage: the quote, text and relevance of a note."""

    quote: Quote
    text: str
    relevant: bool
