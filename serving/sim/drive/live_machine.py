"""A real engine's simulated counterpart: the step cost fitted to it at work, and its room."""

from __future__ import annotations

import math
from itertools import chain, islice

from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import LiveEngine, replay_live
from serving.sim.drive.live_scale import LiveSettings, Scale, scaled
from serving.sim.programs.programs import Program, Stage
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.workloads import generate
from serving.slo import SloKind
from serving.step_cost import Machine, fit

CALIBRATION_WORKLOAD = "mixed"
CALIBRATION_SEED = 1_000_003
CALIBRATION_S = 30.0
RISING_SHARE = 0.75
"""Of the calibration, in which the requests at work rise from one to all that have a slot."""

PROGRAMS_A_LANE = 50

SIMULATED_BLOCK_TOKENS = 16
"""Of the simulated machine's blocks, whatever the engine's own hold."""


async def measured_machine(
    engine: LiveEngine, settings: LiveSettings, *, calibration_s: float = CALIBRATION_S
) -> Machine:
    """The simulated counterpart of an idle engine, from its steps under work that rises.

    The work is made of programs one after another in as many lanes as there are slots. Lanes open
    one by one, whatever the engine's speed, so that every size of batch comes up; and the steps are
    those of a replay, so that what the callers' event loop and the arrivals cost is part of them.

    Args:
        calibration_s: how long it takes.
    Raises:
        StepFitFailed: the measured steps do not tell what a step costs.
    """
    room = await engine.room()
    lanes = calibration_lanes(settings, num_lanes=room.slots, rising_s=RISING_SHARE * calibration_s)
    await replay_live(
        lanes,
        engine,
        policy=PolicySpec("fcfs"),
        predictions=Predictions(max_tokens=settings.most_call_tokens),
        until_s=calibration_s,
    )
    samples = await engine.samples()
    own_blocks = f"{room.kv_blocks} blocks of {room.block_tokens} tokens"
    return Machine(
        step_cost=fit(
            samples,
            name="the engine at hand",
            source=f"its latest {len(samples)} steps of {calibration_s:g} s of rising work",
        ),
        kv_blocks=room.kv_blocks * room.block_tokens // SIMULATED_BLOCK_TOKENS,
        block_tokens=SIMULATED_BLOCK_TOKENS,
        memory_source=f"the engine's own {own_blocks}",
    )


def calibration_lanes(
    settings: LiveSettings, *, num_lanes: int, rising_s: float
) -> tuple[Program, ...]:
    """Long programs without promises or tools, that begin one by one within `rising_s` seconds."""
    programs = generate(
        CALIBRATION_WORKLOAD,
        rate_per_s=1.0,
        window_s=math.inf,
        seed=CALIBRATION_SEED,
        arrivals=[0.0] * (num_lanes * PROGRAMS_A_LANE),
    )
    shorter = Scale(tokens=settings.length_scale, step=1.0)
    taken = iter(scaled(programs, shorter, most_call_tokens=settings.most_call_tokens))
    return tuple(
        Program(
            id=f"calibration-{lane:04d}",
            application=CALIBRATION_WORKLOAD,
            kind=SloKind.BEST_EFFORT,
            arrival_s=rising_s * lane / num_lanes,
            stages=tuple(
                Stage(stage.calls)
                for stage in chain.from_iterable(
                    program.stages for program in islice(taken, PROGRAMS_A_LANE)
                )
            ),
        )
        for lane in range(num_lanes)
    )
