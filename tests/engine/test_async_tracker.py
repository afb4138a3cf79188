"""The duration of overlapping steps (asynchronous scheduling) is measured correctly."""

from __future__ import annotations

import random
from collections import deque

import pytest

from serving.policies.table import PolicySpec
from serving.slo import Slo, SloKind
from serving.view import StepModel
from tests.engine.test_virtual import Clock

pytestmark = pytest.mark.usefixtures("imported_vllm")

TRUTH = StepModel(base_s=0.012, token_s=5e-5, sequence_s=0.0, context_s=8e-8, pair_s=3e-9)
LAUNCH_S = 0.0005
NUM_REQUESTS = 60


def test_the_step_model_is_fitted_under_asynchronous_scheduling() -> None:
    """As in vLLM's engine core: two steps are in flight, and the engine waits for the first."""
    from vllm.v1.outputs import ModelRunnerOutput

    from serving.engine.scheduler.scheduler import SloAsyncScheduler
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    class AsyncEngine(VirtualEngine):
        scheduler_class = SloAsyncScheduler

    clock, chance = Clock(), random.Random(1)
    engine = AsyncEngine(VirtualConfig(policy=PolicySpec("fcfs")), clock)
    scheduler = engine.scheduler
    arrivals = deque((number * 0.2, f"r{number}") for number in range(NUM_REQUESTS))
    in_flight: deque[tuple[object, dict[str, bool], float]] = deque()
    sampled: dict[str, int] = {}
    free_at_s = 0.0
    while arrivals or scheduler.has_requests() or in_flight:
        while arrivals and arrivals[0][0] <= clock.now_s:
            _, name = arrivals.popleft()
            slo = Slo(kind=SloKind.DEADLINE, deadline_s=30.0)
            prompt = [7] * chance.choice([50, 300, 1500, 4000])
            engine.submit(name, prompt=prompt, output_tokens=64, slo=slo, max_tokens=64)
        if not scheduler.has_requests() and not in_flight:
            clock.now_s = arrivals[0][0]
            continue
        if scheduler.has_requests():
            output = scheduler.schedule()
            composition = scheduler.composition
            yields_token = {
                name: not scheduler.requests[name].is_prefill_chunk
                for name in output.num_scheduled_tokens
            }
            if composition.new_tokens:
                seconds = TRUTH.seconds(
                    new_tokens=composition.new_tokens,
                    num_decodes=composition.num_decodes,
                    decode_context_tokens=composition.decode_context_tokens,
                    prompt_pairs=composition.prompt_pairs,
                )
                free_at_s = max(clock.now_s, free_at_s) + seconds
            in_flight.append((output, yields_token, free_at_s))
            clock.now_s += LAUNCH_S
            if len(in_flight) < 2:
                continue
        output, yields_token, ended_s = in_flight.popleft()
        clock.now_s = max(clock.now_s, ended_s)
        names = list(yields_token)
        sampled.update({name: sampled.get(name, 0) + 1 for name in names if yields_token[name]})
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[7] if yields_token[name] else [] for name in names],
            ),
        )
    assert len(sampled) == NUM_REQUESTS
    assert scheduler.lifecycle.tracker.model == pytest.approx(TRUTH, rel=0.01, abs=1e-10)
