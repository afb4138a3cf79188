"""Calls of a server, as its analyzer is told about them."""

from __future__ import annotations

from typing import Any

from serving.analyzer.messages import Arrival, Ended


def arrival(call: str, at_s: float, **fields: Any) -> Arrival:
    """An arrival with valid features; what is not given has defaults."""
    given = {"model": "m", "shape": "s", "prompt_tokens": 10, "words": "00" * 16} | fields
    return Arrival(call=call, at_s=at_s, **given)


def ended(call: str, at_s: float, output_tokens: int = 5, **fields: Any) -> Ended:
    """A complete answer."""
    given = {"answer": f"{call}_0", "prompt_tokens": 10, "is_complete": True} | fields
    return Ended(call=call, at_s=at_s, output_tokens=output_tokens, **given)
