"""The interface of an engine that a driver steps, and the result of a step."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from serving.slo import Slo
from serving.step_cost import Composition


class Ended(NamedTuple):
    """How a request ended: "stop", "length", or "abort" with the engine's reason."""

    request_id: str
    finish_reason: str
    stop_reason: str | None


class Progress(NamedTuple):
    """The result of one step.

    Attributes:
        tokens: request ids, one for each token.
        ended: the requests that ended.
    """

    tokens: tuple[str, ...]
    ended: tuple[Ended, ...]


class SteppedEngine(Protocol):
    """An engine that plans and finishes one step at a time, on a clock that the driver sets."""

    @property
    def has_work(self) -> bool:
        """Whether a step is needed."""
        ...

    @property
    def preemptions(self) -> int:
        """How often a request had to recompute KV cache that it had lost, all or in part."""
        ...

    @property
    def recomputed_tokens(self) -> int:
        """Number of tokens that were computed again."""
        ...

    def submit(
        self,
        request_id: str,
        *,
        prompt: list[int],
        output_tokens: int,
        slo: Slo,
        max_tokens: int,
        whole_tokens: int | None = None,
    ) -> None:
        """Take a request.

        Args:
            output_tokens: its true length, at least 1; policies do not see it.
            whole_tokens: the true length of the first of its answer's two parts; None: it has one.
            max_tokens: its limit, at least output_tokens; policies see it.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Abort a request, as if its caller had disconnected."""
        ...

    def plan_step(self) -> Composition:
        """Plan the next step; `finish_step` must follow."""
        ...

    def finish_step(self) -> Progress:
        """Compute the planned step; the driver has set the clock to its end."""
        ...
