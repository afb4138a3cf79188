"""An engine that stops when enough is known, and what is enough to tell how fast it drains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from serving.sim.drive.stepped import Progress
from serving.step_cost import Composition

if TYPE_CHECKING:
    from serving.sim.drive.stepped import SteppedEngine
    from serving.sim.programs.programs import Program
    from serving.slo import Slo


class StoppingEngine:
    """A SteppedEngine around another, which has no work any more once it was enough.

    Args:
        is_enough: asked after each step.
    """

    def __init__(self, engine: SteppedEngine, is_enough: Callable[[Progress], bool]) -> None:
        self._engine = engine
        self._is_enough = is_enough
        self._stopped = False

    @property
    def has_work(self) -> bool:
        """Whether a step is needed; never again once it was enough."""
        return not self._stopped and self._engine.has_work

    @property
    def preemptions(self) -> int:
        """As the engine counts them."""
        return self._engine.preemptions

    @property
    def recomputed_tokens(self) -> int:
        """As the engine counts them."""
        return self._engine.recomputed_tokens

    def submit(
        self, request_id: str, *, prompt: list[int], output_tokens: int, slo: Slo, max_tokens: int
    ) -> None:
        """Take a request; once it was enough, it will never be begun."""
        if not self._stopped:
            self._engine.submit(
                request_id,
                prompt=prompt,
                output_tokens=output_tokens,
                slo=slo,
                max_tokens=max_tokens,
            )

    def abort(self, request_id: str) -> None:
        """End a request as its caller would by leaving."""
        self._engine.abort(request_id)

    def plan_step(self) -> Composition:
        """Decide the next step; `finish_step` must follow."""
        return self._engine.plan_step()

    def finish_step(self) -> Progress:
        """Compute the planned step; the clock stands at its end."""
        progress = self._engine.finish_step()
        self._stopped = self._is_enough(progress)
        return progress


class Drained:
    """Enough once a share of all tokens was computed, a call's input with its first token.

    Attributes:
        reached_s: when that was; None as long as it was not.
    """

    def __init__(
        self, programs: Sequence[Program], *, share: float, clock: Callable[[], float]
    ) -> None:
        self._prompts = {
            call.call_id: call.call.prompt_tokens
            for program in programs
            for call in program.all_calls()
        }
        self._left = share * sum(program.total_tokens for program in programs)
        self._clock = clock
        self.reached_s: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """Take note of a step; whether it was enough."""
        for call_id in progress.tokens:
            self._left -= 1 + self._prompts.pop(call_id, 0)
        if self._left <= 0 and self.reached_s is None:
            self.reached_s = self._clock()
        return self.reached_s is not None
