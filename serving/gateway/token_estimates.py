"""How many tokens a prompt has and an answer will have, learned from the `usage` of answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

CHARACTERS_PER_TOKEN = 4.0
"""Before the first answer of a model: English text, for common tokenizers."""

ANSWER_TOKENS = 256.0
"""The length of an answer without a limit, before the first answer of a model."""

KEPT_SHARE = 0.98
"""How much of what was learned counts after one more answer: about the last 50 answers count."""

MAX_MODELS = 256
"""Models that are learned: those of a fleet. Names come from clients, so there must be a bound."""

USAGE_BYTES = 4096
"""The end of an answer in which its `usage` is looked for; few members follow it."""

_COUNT = rb'"%s":\s*(\d{1,9})\b'
_PROMPT = re.compile(_COUNT % b"(?:prompt|input)_tokens")
_ANSWER = re.compile(_COUNT % b"(?:completion|output)_tokens")


class Usage(NamedTuple):
    """The tokens of a request as its answer counts them."""

    prompt_tokens: int
    answer_tokens: int


def usage_at_end(tail: bytes) -> Usage | None:
    """The usage in the last bytes of an answer; None if there is none, as in most streams.

    Quotes within a text are escaped, so no text of the model looks like it.
    """
    place = tail.rfind(b'"usage":')
    if place < 0:
        return None
    prompt, answer = _PROMPT.search(tail, place), _ANSWER.search(tail, place)
    if prompt is None:
        return None
    return Usage(int(prompt[1]), 0 if answer is None else int(answer[1]))


@dataclass(slots=True)
class _Sums:
    characters: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    answers: float = 0.0


class TokenEstimates:
    """Estimates for each model, from decayed sums over its answers."""

    def __init__(self) -> None:
        self._models: dict[str, _Sums] = {}

    def learn(self, model: str, *, characters: int, usage: Usage) -> None:
        """Count an answer.

        Args:
            characters: length of the prompt's JSON text.
        """
        if model not in self._models and len(self._models) >= MAX_MODELS:
            return
        sums = self._models.setdefault(model, _Sums())
        sums.characters = KEPT_SHARE * sums.characters + characters
        sums.prompt_tokens = KEPT_SHARE * sums.prompt_tokens + usage.prompt_tokens
        sums.answer_tokens = KEPT_SHARE * sums.answer_tokens + usage.answer_tokens
        sums.answers = KEPT_SHARE * sums.answers + 1.0

    def prompt_tokens(self, model: str, characters: int) -> int:
        """The estimated tokens of a prompt, at least 1."""
        sums = self._models.get(model)
        ratio = 1.0 / CHARACTERS_PER_TOKEN
        if sums is not None and sums.characters:
            ratio = sums.prompt_tokens / sums.characters
        return max(1, round(ratio * characters))

    def answer_tokens(self, model: str) -> int:
        """The mean length of the model's answers, at least 1."""
        sums = self._models.get(model)
        mean = ANSWER_TOKENS if sums is None else sums.answer_tokens / sums.answers
        return max(1, round(mean))
