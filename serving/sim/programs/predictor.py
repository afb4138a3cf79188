"""What gives simulated calls their SLOs and predictions, and what learns from those that ended."""

from __future__ import annotations

from typing import Any, Protocol

from serving.sim.programs.programs import Program, StageCall
from serving.slo import Slo


class Predictor(Protocol):
    """Gives each call its SLO with predictions, as the orchestrator's runtime would."""

    @property
    def max_tokens(self) -> int:
        """The limit of every call, the same for all so that it does not reveal lengths."""
        ...

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of a call that is submitted now; again for a call that several replicas get."""
        ...

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """A call has ended by itself; it was due at began_s."""
        ...


class Recorder(Predictor, Protocol):
    """Predicts nothing, and records the calls of the programs that it sees."""

    def learned(self) -> Predictor:
        """What is learned from the programs that have completed; it learns no more."""
        ...


class Learning(Protocol):
    """How programs are recorded and learned from. Picklable, hashable and compared by value."""

    def recorder(self, *, max_tokens: int) -> Recorder:
        """A recorder that has seen nothing."""
        ...

    def key(self) -> dict[str, Any]:
        """What its predictions depend on, with its code; JSON-safe."""
        ...
