from __future__ import annotations

from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import Drained, StoppingEngine
from serving.sim.workloads.load_generator import Source, backlog, generate_load
from serving.step_cost import STEP_COSTS
from tests.unit.serving.sim.bench_examples import FifoEngine

COST = STEP_COSTS["a100-llama3-8b"]
OFFERED = generate_load(
    Source.generator("mixed"), rate_per_s=1.0, seed=2, warmup_s=5.0, window_s=20.0, arrivals="burst"
)


def test_nothing_is_begun_once_it_was_enough() -> None:
    fifos = []
    for share in (0.4, 1.0):
        clock, fifo = VirtualTime(), FifoEngine(64)
        drained = Drained(OFFERED.programs, share=share, clock=clock)
        engine = StoppingEngine(fifo, drained)
        replay(OFFERED.programs, engine, clock, COST, until_s=OFFERED.decided_s)
        fifos.append(fifo)
    stopped, whole = fifos
    assert stopped.submitted == whole.submitted[: len(stopped.submitted)]
    assert 0 < len(stopped.submitted) < len(whole.submitted)


def test_a_backlog_is_drained_when_the_share_of_its_tokens_is_computed() -> None:
    programs = backlog(Source.generator("coder"), num_programs=40, seed=0)
    moments = []
    for share in (0.25, 0.5, 1.0):
        clock = VirtualTime()
        drained = Drained(programs, share=share, clock=clock)
        engine = StoppingEngine(FifoEngine(), drained)
        found = replay(programs, engine, clock, COST, until_s=float("inf"))
        done = sum(
            len(call.token_times_s) + (call.prompt_tokens if call.token_times_s else 0)
            for each in found.programs
            for call in each.each_call()
        )
        total = sum(each.total_tokens for each in programs)
        assert share * total <= done <= share * total + 60_000
        assert drained.reached_s is not None
        moments.append(drained.reached_s)
    assert moments == sorted(set(moments))
