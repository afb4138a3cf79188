"""Profiles: how a model is asked, by its size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agents.deep_research import plain_text, structured
from agents.deep_research.notes import Note, Reading
from agents.deep_research.report import Report
from agents.tools.passages import Passage
from orchestrator import model_info

ProfileName = Literal["small", "large"]

SMALL_MODEL_PARAMETERS = 2_000_000_000
"""Below it a model is asked for plain text: such models often leave a plan or a draft in JSON
unfinished, or fill it with repetitions. Judged by reading reports of a model of 135 million."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The LLM calls of deep research, each for one kind of model.

    Each may raise an error of a call.

    Attributes:
        sources_per_question: passages that are read for a question.
        plan: question, most sub-questions -> sub-questions.
        read: question, passage -> a quote, what the model says, and whether it is relevant.
        reflect: question, most questions, sources -> further questions; none if they are enough.
        write: question, sources, completed rounds, what was left out -> the report.
    """

    sources_per_question: int
    plan: Callable[[str, int], Awaitable[list[str]]]
    read: Callable[[str, Passage], Awaitable[Reading]]
    reflect: Callable[[str, int, Sequence[Note]], Awaitable[list[str]]]
    write: Callable[[str, Sequence[Note], int, Sequence[str]], Awaitable[Report]]


PROFILES: dict[ProfileName, Profile] = {
    # A small model finds few sub-questions, and reads a passage by its quote alone.
    "small": Profile(6, plain_text.plan, plain_text.read, plain_text.reflect, plain_text.write),
    "large": Profile(3, structured.plan, structured.read, structured.reflect, structured.write),
}


async def profile_for(asked: Literal["auto", "small", "large"]) -> ProfileName:
    """The profile that is asked for; by default by the model's size, large if it is not known."""
    if asked != "auto":
        return asked
    parameters = (await model_info()).parameters
    is_small = parameters is not None and parameters < SMALL_MODEL_PARAMETERS
    return "small" if is_small else "large"
