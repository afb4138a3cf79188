"""Pieces of a comparison that run on the real engine: one process, one after the other.

The process's engine is started by the first piece, and ends with the process.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from serving.sim.compare.experiments import Experiment, document_of
from serving.sim.drive.live_scale import LiveSettings
from serving.step_cost import Machine, StepCost

if TYPE_CHECKING:
    from serving.sim.drive.live_driver import LiveEngine


@dataclass(frozen=True, slots=True)
class MachineTask:
    """The simulated counterpart of the engine at hand, measured."""

    settings: LiveSettings
    sort: str = field(default="machine", init=False)
    weight: float = field(default=1.0, init=False)

    def key(self) -> dict[str, Any]:
        """What is asked for; two measurements still differ."""
        return asdict(self.settings)

    def run(self) -> dict[str, Any]:
        """The machine as a document; raises StepFitFailed, or why the engine does not start."""
        from serving.sim.drive.live import measure_machine

        return asdict(measure_machine(_engine(self.settings), self.settings))


@dataclass(frozen=True, slots=True)
class LiveExperiment:
    """A case that is measured instead of simulated; its setting has a scaling."""

    case: Experiment
    sort: str = field(default="live", init=False)

    @property
    def weight(self) -> float:
        """Proportional to the real seconds that it takes."""
        return self.case.setting.warmup_s + self.case.setting.window_s

    def key(self) -> dict[str, Any]:
        """What is asked for; two measurements still differ."""
        return self.case.key()

    def run(self) -> dict[str, Any]:
        """Its outcome, as Case.run gives it; raises ServingError if the engine fails."""
        from serving.sim.drive.live import run_live

        case, setting = self.case, self.case.setting
        assert setting.scaling is not None, "the engine at hand is not the one of the papers"
        offered = setting.generated_load(rate_per_s=case.rate_per_s, seed=case.seed)
        replayed = run_live(
            offered.programs,
            _engine(setting.scaling.settings),
            policy=case.policy,
            predictions=setting.predictions_of(case.seed),
            until_s=offered.decided_s,
        )
        return document_of(offered, replayed)


def machine_of(document: dict[str, Any]) -> Machine:
    """The machine of a MachineTask's document."""
    return Machine(**{**document, "step_cost": StepCost(**document["step_cost"])})


_ENGINES: dict[LiveSettings, LiveEngine] = {}
_OPEN = ExitStack()
Finalize(None, _OPEN.close, exitpriority=10)  # threads still run then; at exit they do not


def _engine(settings: LiveSettings) -> LiveEngine:
    """This process's engine, started where it is not yet."""
    if settings not in _ENGINES:
        from serving.sim.drive.live import replaying_engine

        _ENGINES[settings] = _OPEN.enter_context(replaying_engine(settings))
    return _ENGINES[settings]
