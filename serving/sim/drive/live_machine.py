"""A real engine's simulated counterpart: a step cost fitted to measured steps, and its KV cache."""

from __future__ import annotations

import math
from itertools import chain, islice

from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import LiveEngine, replay_live
from serving.sim.drive.live_scale import LiveSettings, Scale, scaled
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Program, Stage
from serving.sim.workloads.workloads import generate
from serving.slo import SloKind
from serving.step_cost import Machine, fit

CALIBRATION_WORKLOAD = "mixed"
CALIBRATION_SEED = 1_000_003
CALIBRATION_S = 30.0
RAMP_SHARE = 0.75
"""Share of the calibration in which the number of running requests rises from 1 to all slots."""

PROGRAMS_PER_LANE = 50
"""Enough to keep a lane busy for the whole calibration."""

SIMULATED_BLOCK_TOKENS = 16
"""Tokens of a block of the simulated machine, independent of the engine's block size."""


async def measured_machine(
    engine: LiveEngine,
    settings: LiveSettings,
    *,
    calibration_s: float = CALIBRATION_S,
    num_replicas: int = 1,
) -> Machine:
    """The simulated counterpart of an idle engine, fitted to its steps under a rising load.

    The load is one lane per slot; a lane runs programs one after another. Lanes start one by one,
    independent of the engine's speed, so that every batch size occurs. The steps are those of a
    replay, so they include the overhead of the callers' event loop and of arrivals.

    Args:
        calibration_s: duration in real seconds.
        num_replicas: number of equal engines behind this one, all of which are loaded; its capacity
            is that of one of them, and its steps are those of all.
    Raises:
        StepFitFailed: the measured steps do not determine a step cost.
    """
    capacity = await engine.capacity()
    num_lanes = num_replicas * capacity.slots
    lanes = calibration_lanes(settings, num_lanes=num_lanes, ramp_s=RAMP_SHARE * calibration_s)
    await replay_live(
        lanes,
        engine,
        policy=PolicySpec("fcfs"),
        predictor=Predictions(max_tokens=settings.most_call_tokens),
        until_s=calibration_s,
    )
    samples = await engine.samples()
    blocks = f"{capacity.kv_blocks} blocks of {capacity.block_tokens} tokens"
    return Machine(
        step_cost=fit(
            samples,
            name="the measured engine",
            source=f"its latest {len(samples)} steps of {calibration_s:g} s of rising load",
        ),
        kv_blocks=capacity.kv_blocks * capacity.block_tokens // SIMULATED_BLOCK_TOKENS,
        block_tokens=SIMULATED_BLOCK_TOKENS,
        memory_source=f"the engine's own {blocks}",
    )


def calibration_lanes(
    settings: LiveSettings, *, num_lanes: int, ramp_s: float
) -> tuple[Program, ...]:
    """Long programs without SLOs and tools, one per lane; they start evenly within ramp_s."""
    programs = generate(
        CALIBRATION_WORKLOAD,
        rate_per_s=1.0,
        window_s=math.inf,
        seed=CALIBRATION_SEED,
        arrivals=[0.0] * (num_lanes * PROGRAMS_PER_LANE),
    )
    scale = Scale(tokens=settings.length_scale, step=1.0)
    remaining = iter(scaled(programs, scale, most_call_tokens=settings.most_call_tokens))
    return tuple(
        Program(
            id=f"calibration-{lane:04d}",
            application=CALIBRATION_WORKLOAD,
            kind=SloKind.BEST_EFFORT,
            arrival_s=ramp_s * lane / num_lanes,
            stages=tuple(
                Stage(stage.calls)
                for stage in chain.from_iterable(
                    program.stages for program in islice(remaining, PROGRAMS_PER_LANE)
                )
            ),
        )
        for lane in range(num_lanes)
    )
