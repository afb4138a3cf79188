"""Replays programs on the real engine, in a process of its own; prints outcomes as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import Any

from serving.engine.clients.embedded import scheduler_of
from serving.policies.table import PolicySpec
from serving.sim.drive.live import measure_machine, replaying_engine, run_live
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from serving.step_cost import Composition

SETTINGS = LiveSettings(slots=8, step_tokens=256, kv_tokens=2048, most_call_tokens=1024)
MAX_TOKENS = 600
PREDICTIONS = Predictions(max_tokens=MAX_TOKENS)


def chain(number: int, *, prompt: int, output: int) -> Program:
    """A program of two stages: two calls, then one."""
    first = Stage((Call(prompt, output), Call(prompt // 2, 1)))
    return Program(
        id=f"chain-{number}",
        application="test",
        kind=SloKind.COMPOUND,
        arrival_s=0.0,
        stages=(first, Stage((Call(prompt, output + number),), tool_s=0.01)),
        deadline_s=100.0,
    )


def outcomes(engine: Any, programs: list[Program], *, until_s: float) -> dict[str, Any]:
    """The results of a replay under edf, and the engine's state after it."""
    max_tokens: set[int] = set()
    scheduler = asyncio.run(engine.call(scheduler_of))
    add_request = scheduler.add_request

    def watch(request: Any) -> None:
        max_tokens.add(request.max_tokens)
        add_request(request)

    scheduler.add_request = watch
    result = run_live(
        programs, engine, policy=PolicySpec("edf"), predictor=PREDICTIONS, until_s=until_s
    )
    scheduler.add_request = add_request
    return {
        "finished": [each.finished for each in result.programs],
        "lengths": [[each.call.output_tokens for each in one.all_calls()] for one in programs],
        "delivered": [
            [len(call.token_times_s) for call in each.each_call()] for each in result.programs
        ],
        "preemptions": result.counters.preemptions,
        "recomputed_tokens": result.counters.recomputed_tokens,
        "steps": result.counters.steps,
        "schedule_ms": result.counters.schedule_ms_per_step,
        "samples": len(asyncio.run(engine.samples())),
        "max_tokens": sorted(max_tokens),
        "held_blocks": asyncio.run(engine.call(_held_blocks)),
        "arrivals": asyncio.run(engine.call(_arrivals)),
    }


def _held_blocks(llm: Any) -> int:
    pool = scheduler_of(llm).kv_cache_manager.block_pool
    return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())  # one block is reserved


def _arrivals(llm: Any) -> int:
    """Number of recent arrivals that the policy sees."""
    ledger = scheduler_of(llm).lifecycle.ledger
    arrivals, *_ = ledger.arrivals()
    return len(arrivals)


def main() -> None:
    """Run all replays, then measure the machine."""
    with replaying_engine(SETTINGS) as engine:
        small = [chain(number, prompt=20, output=30) for number in range(4)]
        large = [chain(number, prompt=200, output=250) for number in range(6)]
        endless = [chain(number, prompt=100, output=500) for number in range(8)]
        results = {
            "small": outcomes(engine, small, until_s=120.0),
            "large": outcomes(engine, large, until_s=240.0),
            "cut short": outcomes(engine, endless, until_s=0.3),
            "capacity": asyncio.run(engine.capacity())._asdict(),
        }
        machine = measure_machine(engine, SETTINGS, calibration_s=2.0)
        results["machine"] = {
            "kv_tokens": machine.kv_tokens,
            "step_s": machine.step_cost.seconds(Composition(8, 8, 800, ())),
            "samples": len(asyncio.run(engine.samples())),
        }
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
