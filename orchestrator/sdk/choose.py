"""choose: which of some texts the model prefers, by one token of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.llm import Prompt, turns_of
from serving.generation import MAX_CHOICES, GenerationRequest, Message


@dataclass(frozen=True, slots=True)
class Choice:
    """The model's choice.

    Attributes:
        index: of the chosen option.
        text: the option itself.
        probabilities: of all options; they sum to 1. Of an engine that tells no probabilities, 1
            for the chosen one.
    """

    index: int
    text: str
    probabilities: tuple[float, ...]


async def choose(prompt: Prompt, options: Sequence[str], *, system: str | None = None) -> Choice:
    """Ask the model to choose; one call with one output token, however many options there are.

    The options are listed after the prompt, each with a letter, and the model answers a letter.

    Args:
        prompt: the user's message, or the turns of a chat, of which the last gets the list.
        options: 1 to MAX_CHOICES texts.
    Raises:
        ValueError: there are no options, or too many.
        And what `llm` raises.
    """
    if not 1 <= len(options) <= MAX_CHOICES:
        raise ValueError(f"give 1 to {MAX_CHOICES} options, not {len(options)}")
    letters = tuple(ascii_uppercase[: len(options)])
    listed = "\n".join(
        f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)
    )
    completion = await run_llm_call(
        current_context("choose()"),
        GenerationRequest(
            request_id="",
            prompt=_with_list(turns_of(prompt, system), f"{listed}\nAnswer with one letter."),
            choices=letters,
            temperature=0.0,
        ),
    )
    if completion.choice_logprobs:
        probabilities = _softmax(completion.choice_logprobs)
    else:
        probabilities = tuple(float(completion.text.strip()[:1] == letter) for letter in letters)
    index = max(range(len(options)), key=probabilities.__getitem__)
    return Choice(index, options[index], probabilities)


def _with_list(turns: str | tuple[Message, ...], listed: str) -> tuple[Message, ...]:
    assert not isinstance(turns, str), "a prompt of choose() is never raw"
    *before, last = turns
    return (*before, Message(last.role, f"{last.content}\n\n{listed}"))


def _softmax(logprobs: Sequence[float]) -> tuple[float, ...]:
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    return tuple(weight / sum(weights) for weight in weights)
