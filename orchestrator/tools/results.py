"""Results of tools as texts for models."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

MAX_CHARACTERS = 20_000
"""Most characters of a result by default; of a model with a short context fewer."""


def result_text(value: Any, max_characters: int) -> str:
    """A result as a text: itself, or its JSON; a long one is cut, and says so."""
    if isinstance(value, str):
        text = value
    else:
        text = to_json(value, fallback=str, inf_nan_mode="constants").decode()
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}\n[cut: the first {max_characters} of {len(text)} characters]"


def default_limit(context_tokens: int | None) -> int:
    """Most characters of a result: about a quarter of a short context, at four a token."""
    return MAX_CHARACTERS if context_tokens is None else min(MAX_CHARACTERS, context_tokens)
