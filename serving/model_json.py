"""JSON that a model wrote: read by the same rules wherever it is read."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 200
"""Deepest nesting that is read, as pydantic's: what Python could read depends on its stack."""


def json_of(text: str) -> Any:
    """The value of a JSON text, whose strings may have line ends and tabs as they are.

    Raises:
        ValueError: it is no JSON, or is nested more than MAX_DEPTH deep.
    """
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a tool call; those that were left out are none.

    Raises:
        ValueError: it is no JSON object; what it says completes "the arguments are".
    """
    if not text.strip():
        return {}
    try:
        value = json_of(text)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def _is_deep(value: Any) -> bool:
    """Whether a value is nested too deep; told without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)
