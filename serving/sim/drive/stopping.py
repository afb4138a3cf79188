"""An engine that stops on a condition, and the condition that measures how fast it drains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from serving.sim.drive.stepped import Progress
from serving.step_cost import Composition

if TYPE_CHECKING:
    from serving.sim.drive.stepped import SteppedEngine
    from serving.sim.programs.programs import Program


class StoppingEngine:
    """Wraps a SteppedEngine and ends its work once a condition holds.

    Args:
        should_stop: called after each step.
    """

    def __init__(self, engine: SteppedEngine, should_stop: Callable[[Progress], bool]) -> None:
        self._engine = engine
        self._should_stop = should_stop
        self._stopped = False

    @property
    def has_work(self) -> bool:
        """Whether a step is needed; False after the stop."""
        return not self._stopped and self._engine.has_work

    @property
    def preemptions(self) -> int:
        """As the engine counts them."""
        return self._engine.preemptions

    @property
    def recomputed_tokens(self) -> int:
        """As the engine counts them."""
        return self._engine.recomputed_tokens

    def submit(self, request_id: str, **request: Any) -> None:
        """Take a request; ignored after the stop."""
        if not self._stopped:
            self._engine.submit(request_id, **request)

    def abort(self, request_id: str) -> None:
        """Abort a request, as if its caller had disconnected."""
        self._engine.abort(request_id)

    def plan_step(self) -> Composition:
        """Plan the next step; `finish_step` must follow."""
        return self._engine.plan_step()

    def finish_step(self) -> Progress:
        """Compute the planned step; the driver has set the clock to its end."""
        progress = self._engine.finish_step()
        self._stopped = self._should_stop(progress)
        return progress


class DrainCondition:
    """Holds once a share of all tokens is computed; a call's input counts with its first token.

    Attributes:
        reached_s: when the share was reached; None before.
    """

    def __init__(
        self, programs: Sequence[Program], *, share: float, clock: Callable[[], float]
    ) -> None:
        self._prompts = {
            call.call_id: call.call.prompt_tokens
            for program in programs
            for call in program.all_calls()
        }
        self._remaining_tokens = share * sum(program.total_tokens for program in programs)
        self._clock = clock
        self.reached_s: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """Count the tokens of a step; returns whether the share is reached."""
        for call_id in progress.tokens:
            self._remaining_tokens -= 1 + self._prompts.pop(call_id, 0)
        if self._remaining_tokens <= 0 and self.reached_s is None:
            self.reached_s = self._clock()
        return self.reached_s is not None
