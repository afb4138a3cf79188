"""An engine that is stepped by hand, and what a step of it brings."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from serving.slo import Slo
from serving.step_cost import Composition


class Ended(NamedTuple):
    """How a request ended: "stop", "length", or "abort" with the reason that the engine gave."""

    request_id: str
    finish_reason: str
    stop_reason: str | None


class Progress(NamedTuple):
    """What one step brought: who got a token, and who ended."""

    tokens: tuple[str, ...]
    ended: tuple[Ended, ...]


class SteppedEngine(Protocol):
    """Plans and finishes one step at a time, and reads a clock that is not its own."""

    @property
    def has_work(self) -> bool:
        """Whether a step is needed."""
        ...

    @property
    def preemptions(self) -> int:
        """How often a request lost its KV cache, or a part of it, and began to recompute."""
        ...

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that were computed again."""
        ...

    def submit(
        self, request_id: str, *, prompt: list[int], output_tokens: int, slo: Slo, max_tokens: int
    ) -> None:
        """Take a request.

        Args:
            output_tokens: its true length, at least 1, which no policy is told.
            max_tokens: its caller's limit, which policies see; at least output_tokens.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request as its caller would by leaving."""
        ...

    def plan_step(self) -> Composition:
        """Decide the next step; `finish_step` must follow."""
        ...

    def finish_step(self) -> Progress:
        """Compute the planned step; the clock stands at its end."""
        ...
