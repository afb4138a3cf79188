"""An engine that stops when enough is known.

What comes later would change no promise that is kept, and so neither goodput in tokens nor in
requests: by then every counted stream has ended, or has missed the moment by which it had to. Only
programs that are late already would still end: what is told of all that ended (E2EL, TBT, the
service gain that decays) leaves these out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from serving.sim.offer import fate_s
from serving.sim.step_cost import Composition
from serving.sim.stepped import Progress

if TYPE_CHECKING:
    from serving.sim.programs import Program
    from serving.sim.stepped import SteppedEngine
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


class AllDecided:
    """Enough once every counted program has ended, or can no longer keep its promise.

    Args:
        counted: a call's id begins with its program's.
        clock: the engine's, in seconds.
    """

    def __init__(self, counted: Iterable[Program], clock: Callable[[], float]) -> None:
        programs = sorted(counted, key=fate_s)
        self._clock = clock
        self._fates = [(fate_s(program), program.id) for program in programs]  # the latest is last
        self._calls_left = {program.id: program.num_calls for program in programs}

    def __call__(self, progress: Progress) -> bool:
        """Take note of a step; whether it was enough."""
        for ended in progress.ended:
            program_id = _program_of(ended.request_id)
            if program_id in self._calls_left:
                left = self._calls_left[program_id] - 1
                is_lost = ended.finish_reason == "abort"  # without this call it cannot end
                self._calls_left[program_id] = 0 if is_lost else max(left, 0)
        now_s = self._clock()
        while self._fates and (self._fates[-1][0] < now_s or not self._calls_left[self._latest]):
            self._fates.pop()
        return not self._fates

    @property
    def _latest(self) -> str:
        return self._fates[-1][1]


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


def _program_of(call_id: str) -> str:
    """A call's id is its program's, its stage and its place, with slashes between."""
    return call_id.rsplit("/", 2)[0]
