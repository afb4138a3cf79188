"""An engine that stops on a condition, and the condition that measures a drain."""

from __future__ import annotations

from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import DrainCondition, StoppingEngine
from serving.sim.workloads.load_generator import Source, backlog, generate_load
from serving.step_cost import STEP_COSTS
from tests.unit.serving.sim.bench_examples import FifoEngine

COST = STEP_COSTS["a100-llama3-8b"]
LOAD = generate_load(
    Source.generator("mixed"), rate_per_s=1.0, seed=2, warmup_s=5.0, window_s=20.0, arrivals="burst"
)


def test_after_the_stop_no_request_is_submitted() -> None:
    fifos = []
    for share in (0.4, 1.0):
        clock, fifo = VirtualTime(), FifoEngine(64)
        drained = DrainCondition(LOAD.programs, share=share, clock=clock)
        engine = StoppingEngine(fifo, drained)
        replay(LOAD.programs, engine, clock, COST, until_s=LOAD.decided_s)
        fifos.append(fifo)
    stopped, complete = fifos
    assert stopped.submitted == complete.submitted[: len(stopped.submitted)]
    assert 0 < len(stopped.submitted) < len(complete.submitted)


def test_the_drain_ends_when_the_share_of_the_tokens_is_computed() -> None:
    programs = backlog(Source.generator("coder"), num_programs=40, seed=0)
    times_s = []
    for share in (0.25, 0.5, 1.0):
        clock = VirtualTime()
        drained = DrainCondition(programs, share=share, clock=clock)
        engine = StoppingEngine(FifoEngine(), drained)
        replayed = replay(programs, engine, clock, COST, until_s=float("inf"))
        computed = sum(
            len(call.token_times_s) + (call.prompt_tokens if call.token_times_s else 0)
            for each in replayed.programs
            for call in each.each_call()
        )
        total = sum(each.total_tokens for each in programs)
        assert share * total <= computed <= share * total + 60_000
        assert drained.reached_s is not None
        times_s.append(drained.reached_s)
    assert times_s == sorted(set(times_s))
