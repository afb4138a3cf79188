"""Results of tools as texts for models."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

MAX_CHARACTERS = 20_000
"""Most characters of a result by default; of a model with a short context fewer."""

MIN_CHARACTERS = 100
"""Most characters of a result once the results before have used up what they may."""


def result_text(value: Any, max_characters: int) -> str:
    """A result as a text: itself, or its JSON; a long one is cut, and says so."""
    if isinstance(value, str):
        text = value
    else:
        text = to_json(value, fallback=str, inf_nan_mode="constants").decode()
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}\n[cut: the first {max_characters} of {len(text)} characters]"


def default_limit(context_tokens: int | None, *, used_characters: int, num_results: int) -> int:
    """Most characters of each of the next results.

    All results of a chat together get as many characters as the model's context has tokens: about a
    quarter of it, at four a token.

    Args:
        context_tokens: None: not known.
        used_characters: of the results that the chat has already.
    """
    if context_tokens is None:
        return MAX_CHARACTERS
    left = (context_tokens - used_characters) // num_results
    return max(min(MAX_CHARACTERS, left), MIN_CHARACTERS)
