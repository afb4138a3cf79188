"""Experiments on the real engine: they run one after another in one process.

The first one starts the process's engine, which ends with the process.
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
    """Measures the real engine's simulated counterpart."""

    settings: LiveSettings
    kind: str = field(default="machine", init=False)
    weight: float = field(default=1.0, init=False)

    def key(self) -> dict[str, Any]:
        """The settings; two measurements with the same key still differ."""
        return asdict(self.settings)

    def run(self) -> dict[str, Any]:
        """The machine as a document.

        Raises:
            StepFitFailed: the measured steps do not determine a step cost.
            EngineBusy, EngineMissing, ModelNotLoaded: the engine does not start.
        """
        from serving.sim.drive.live import measure_machine

        return asdict(measure_machine(_engine(self.settings), self.settings))


@dataclass(frozen=True, slots=True)
class LiveExperiment:
    """An experiment that is measured instead of simulated; its config has a scaling."""

    experiment: Experiment
    kind: str = field(default="live", init=False)

    @property
    def weight(self) -> float:
        """Proportional to the real seconds that it takes."""
        return self.experiment.config.warmup_s + self.experiment.config.window_s

    def key(self) -> dict[str, Any]:
        """The experiment's key; two measurements with the same key still differ."""
        return self.experiment.key()

    def run(self) -> dict[str, Any]:
        """Its outcome, like Experiment.run; raises ServingError if the engine fails."""
        from serving.sim.drive.live import run_live

        experiment, config = self.experiment, self.experiment.config
        assert config.scaling is not None, "a workload is scaled to the real engine"
        load = config.generate_load(rate_per_s=experiment.rate_per_s, seed=experiment.seed)
        replayed = run_live(
            load.programs,
            _engine(config.scaling.settings),
            policy=experiment.policy,
            predictor=config.predictions_of(experiment.seed),
            until_s=load.decided_s,
        )
        return document_of(load, replayed)


def machine_of(document: dict[str, Any]) -> Machine:
    """The machine of a MachineTask's document."""
    return Machine(**{**document, "step_cost": StepCost(**document["step_cost"])})


_ENGINES: dict[LiveSettings, LiveEngine] = {}
_OPEN = ExitStack()
Finalize(None, _OPEN.close, exitpriority=10)  # before atexit, when threads no longer run


def _engine(settings: LiveSettings) -> LiveEngine:
    """This process's engine; the first call starts it."""
    if settings not in _ENGINES:
        from serving.sim.drive.live import replaying_engine

        _ENGINES[settings] = _OPEN.enter_context(replaying_engine(settings))
    return _ENGINES[settings]
