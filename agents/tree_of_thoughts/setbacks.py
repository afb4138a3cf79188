"""What went wrong in a search that went on: calls that failed, proposals of which none fits."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from serving.errors import PromptTooLong, RequestDropped, RequestFailed

CALL_FAILURES = (PromptTooLong, RequestDropped, RequestFailed)
"""Errors of a single LLM call that cost the thought that it is for, not the search."""

T = TypeVar("T")


@dataclass(slots=True)
class Setbacks:
    """Counts what went wrong, and says it.

    Attributes:
        num_failed: steps of which a call failed.
        last_failure: the error of the last of them.
        num_fruitless: thoughts for which the model proposed nothing that fits.
    """

    num_failed: int = 0
    last_failure: str = ""
    num_fruitless: int = 0

    async def none_if_failed(self, asked: Awaitable[T]) -> T | None:
        """The answer; None if a call failed, which is counted."""
        try:
            return await asked
        except CALL_FAILURES as error:
            self.num_failed += 1
            self.last_failure = str(error)
            return None

    def reason(self, end: str) -> str:
        """Why a search ended as it did: how it ended, and what went wrong before."""
        parts = [end]
        if self.num_fruitless:
            thoughts = "1 thought" if self.num_fruitless == 1 else f"{self.num_fruitless} thoughts"
            parts.append(f"from {thoughts} the model proposed nothing that fits")
        if self.num_failed:
            calls = "1 question" if self.num_failed == 1 else f"{self.num_failed} questions"
            parts.append(f"{calls} to the model failed, the last because {self.last_failure}")
        return "; ".join(parts)
