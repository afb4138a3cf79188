"""Runs programs on the real engine in real time: start it, measure it, replay a workload on it.

    with replaying_engine(settings) as engine:
        machine = measure_machine(engine, settings)
        replayed = run_live(programs, engine, policy=..., predictor=..., until_s=...)

The programs are those of an ExperimentConfig with a `scaling` that fits the workload to the
engine's speed; an Experiment with the same config simulates the same run. All seconds are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from serving.policies.table import PolicySpec
from serving.sim.drive.driver import Replay
from serving.sim.drive.live_driver import LiveEngine, replay_live
from serving.sim.drive.live_machine import CALIBRATION_S, measured_machine
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Program
from serving.step_cost import Machine


@contextmanager
def replaying_engine(settings: LiveSettings) -> Iterator[LiveEngine]:
    """The random model on the embedded engine, ready to replay; at most one per process.

    Raises:
        EngineBusy, EngineMissing, ModelNotLoaded: as EmbeddedEngine.start.
    """
    from serving.sim.drive.replaying_engine import ReplayConfig, ReplayingEngine

    engine = ReplayingEngine(
        ReplayConfig(
            policy=PolicySpec("fcfs"),
            slots=settings.slots,
            step_tokens=settings.step_tokens,
            max_model_tokens=settings.context_tokens,
            kv_tokens=settings.kv_tokens,
        )
    )
    try:
        asyncio.run(engine.start())
        yield engine
    finally:
        asyncio.run(engine.close())


def measure_machine(
    engine: LiveEngine, settings: LiveSettings, *, calibration_s: float = CALIBRATION_S
) -> Machine:
    """Measure an idle engine's simulated counterpart.

    Args:
        calibration_s: real seconds of calibration work.
    Raises:
        StepFitFailed: the measured steps do not determine a step cost.
    """
    return asyncio.run(measured_machine(engine, settings, calibration_s=calibration_s))


def run_live(
    programs: Iterable[Program],
    engine: LiveEngine,
    *,
    policy: PolicySpec,
    predictor: Predictor,
    until_s: float,
) -> Replay:
    """Run programs on an idle engine, in real time: for until_s seconds, or until all are done.

    Args:
        predictor: at the engine's own speed, as ExperimentConfig.predictions_of returns them.
    Raises:
        ServingError: the engine failed.
    """
    return asyncio.run(
        replay_live(programs, engine, policy=policy, predictor=predictor, until_s=until_s)
    )
