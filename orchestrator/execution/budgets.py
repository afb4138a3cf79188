"""The budget of a block: its LLM calls are counted, and none begins once it is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from store.records import CallKind, CallRecord, Status

_COUNTED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
"""Not calls whose process died: they are made again."""


def nothing() -> None:
    """What a budget that bounds no block yet does when it is exceeded."""


@dataclass(slots=True, eq=False)
class Budget:
    """What the LLM calls of a block may use, and have used so far.

    Attributes:
        max_tokens: of prompts and answers together, cached ones included; None: no limit.
        max_calls: None: no limit.
        is_exceeded: whether a call was refused; then nothing more begins in the block.
        end: ends the block.
    """

    max_tokens: int | None = None
    max_calls: int | None = None
    tokens: int = 0
    calls: int = 0
    is_exceeded: bool = False
    end: Callable[[], None] = field(default=nothing, repr=False)

    @property
    def is_spent(self) -> bool:
        """Whether no further call may begin."""
        return self.is_exceeded or any(
            limit is not None and used >= limit
            for used, limit in ((self.tokens, self.max_tokens), (self.calls, self.max_calls))
        )

    def exceed(self) -> None:
        """A call was refused, or anything after that: the block ends."""
        self.is_exceeded = True
        self.end()

    def count(self, calls: Iterable[CallRecord]) -> None:
        """Count calls that are recorded, and not made again."""
        for call in calls:
            if call.kind is CallKind.LLM and call.status in _COUNTED:
                self.calls += 1
                self.tokens += (call.prompt_tokens or 0) + (call.output_tokens or 0)
