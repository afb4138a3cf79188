"""choose: which of some texts the model prefers, by one token of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.prompts import Prompt, turns_of
from serving.generation import MAX_CHOICES, GenerationRequest, Message


@dataclass(frozen=True, slots=True)
class Choice:
    """The model's choice.

    Attributes:
        index: of the chosen option.
        text: the option itself.
        probabilities: of all options; they sum to 1. Of an engine that tells no probabilities, 1
            for the chosen one.
        logprobs: of each option the log-probability that the answer begins with it, so that options
            of several calls with the same prompt can be compared; empty if the engine tells none.
    """

    index: int
    text: str
    probabilities: tuple[float, ...]
    logprobs: tuple[float, ...] = ()


async def choose(
    prompt: Prompt,
    options: Sequence[str],
    *,
    system: str | None = None,
    raw: bool = False,
    engine: str | None = None,
    model: str | None = None,
) -> Choice:
    """Ask the model to choose; one call with one output token, however many options there are.

    The options are listed after the prompt, each with a letter, and the model answers a letter.

    Args:
        prompt: the user's message, or the turns of a chat, of which the last gets the list.
        options: 1 to MAX_CHOICES texts.
        raw: list nothing; the options are words that continue a plain prompt such as "Clue: a
            slow animal\nAnswer:", without the model's chat template, compared by their first
            tokens. Small models are better at this than at letters.
        engine, model: as in `llm`.
    Raises:
        ValueError: there are no options, or too many; or a raw prompt is no text.
        InvalidRequest: two options of a raw prompt begin with the same token.
        And what `llm` raises.
    """
    if not 1 <= len(options) <= MAX_CHOICES:
        raise ValueError(f"give 1 to {MAX_CHOICES} options, not {len(options)}")
    if raw and not isinstance(prompt, str):
        raise ValueError("a raw prompt is a text, which an option continues")
    turns: str | tuple[Message, ...]
    if raw:
        turns, choices = turns_of(prompt, None, raw), tuple(f" {option}" for option in options)
    else:
        choices = tuple(ascii_uppercase[: len(options)])
        listed = "\n".join(
            f"{letter}. {option}" for letter, option in zip(choices, options, strict=True)
        )
        turns = _with_list(turns_of(prompt, system), f"{listed}\nAnswer with one letter.")
    completion = await run_llm_call(
        current_context("choose()"),
        GenerationRequest(request_id="", prompt=turns, choices=choices, temperature=0.0),
        options=CallOptions(engine=engine, model=model),
    )
    if completion.choice_logprobs:
        probabilities = _softmax(completion.choice_logprobs)
    else:
        answer = completion.text.strip()
        answer = answer if raw else answer[:1]
        probabilities = tuple(float(answer == choice.strip()) for choice in choices)
    index = max(range(len(options)), key=probabilities.__getitem__)
    return Choice(index, options[index], probabilities, completion.choice_logprobs)


def _with_list(turns: str | tuple[Message, ...], listed: str) -> tuple[Message, ...]:
    assert not isinstance(turns, str), "a prompt of choose() is never raw"
    *before, last = turns
    added = f"\n\n{listed}"
    content = last.content
    longer = content + added if isinstance(content, str) else (*content, added)
    return (*before, replace(last, content=longer))


def _softmax(logprobs: Sequence[float]) -> tuple[float, ...]:
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    return tuple(weight / sum(weights) for weight in weights)
