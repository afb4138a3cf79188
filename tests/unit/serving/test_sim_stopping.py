from __future__ import annotations

from typing import Any

import pytest

from serving.sim.driver import Replay, VirtualTime, replay
from serving.sim.goodput import met
from serving.sim.metrics import summarise
from serving.sim.offer import Source, backlog, offer
from serving.sim.programs import Call, Program, Stage
from serving.sim.step_cost import STEP_COSTS, Composition, StepCost
from serving.sim.stepped import Ended, Progress, SteppedEngine
from serving.sim.stopping import AllDecided, Drained, StoppingEngine
from serving.slo import SloKind
from tests.unit.serving.bench_examples import FifoEngine

COST = STEP_COSTS["a100-llama3-8b"]
OFFERED = offer(
    Source.generator("mixed"), rate_per_s=1.0, seed=2, warmup_s=5.0, window_s=20.0, arrivals="burst"
)


def ran(*, slots: int, stops: bool) -> tuple[Replay, FifoEngine]:
    clock, fifo = VirtualTime(), FifoEngine(slots)
    engine: SteppedEngine = fifo
    if stops:
        from_s, to_s = OFFERED.window_s
        counted = [each for each in OFFERED.programs if from_s <= each.arrival_s < to_s]
        engine = StoppingEngine(fifo, AllDecided(counted, clock))
    return replay(OFFERED.programs, engine, clock, COST, until_s=OFFERED.decided_s), fifo


@pytest.mark.parametrize("slots", [2, 8, 64])
def test_stopping_when_all_is_decided_changes_no_goodput_and_saves_steps(slots: int) -> None:
    (whole, _), (stopped, _) = ran(slots=slots, stops=False), ran(slots=slots, stops=True)
    reports = [
        summarise(each.programs, window_s=OFFERED.window_s, observed_until_s=OFFERED.decided_s)
        for each in (whole, stopped)
    ]
    assert reports[0].request_goodput > 0 or slots == 2
    for sort in ("tokens", "requests", "weighted"):
        assert reports[0].goodputs[sort] == reports[1].goodputs[sort]
    assert reports[0].attainment == reports[1].attainment
    assert reports[0].throughput_tokens_s == reports[1].throughput_tokens_s
    if slots > 2:
        assert stopped.counters.steps < whole.counters.steps


class PausingEngine(FifoEngine):
    """Leaves a stream's last token for later: as good as nine tenths in time, for ever."""

    def __init__(self, clock: VirtualTime, paused_until_s: float) -> None:
        super().__init__()
        self._clock, self._paused_until_s = clock, paused_until_s

    def plan_step(self) -> Composition:
        paused = self._clock.now_s < self._paused_until_s
        self._running = [
            name
            for name, left in self._left.items()
            if not (paused and left == 1 and name.startswith("stream"))
        ]
        return Composition(len(self._running), len(self._running), 0, ())


@pytest.mark.parametrize("paused_until_s", [5.0, 10.9, 12.0])
@pytest.mark.parametrize("other_tokens", [100, 900])
def test_a_streams_verdict_depends_neither_on_the_stop_nor_on_what_runs_beside_it(
    paused_until_s: float, other_tokens: int
) -> None:
    """100 tokens, a TTFT of 1 s and a TBT of 0.1 s: it must have ended after 11 s."""
    given: dict[str, Any] = {"application": "", "arrival_s": 0.0}
    stream = Program(
        id="stream",
        kind=SloKind.LATENCY,
        stages=(Stage((Call(10, 100),)),),
        ttft_s=1.0,
        tbt_s=0.1,
        **given,
    )
    other = Program(
        id="other",
        kind=SloKind.DEADLINE,
        stages=(Stage((Call(10, other_tokens),)),),
        deadline_s=60.0,
        **given,
    )
    twentieth = StepCost(name="", source="", uncertainty="", fixed_s=0.05)
    for stops in (False, True):
        clock = VirtualTime()
        engine: SteppedEngine = PausingEngine(clock, paused_until_s)
        if stops:
            engine = StoppingEngine(engine, AllDecided([stream, other], clock))
        found = replay((stream, other), engine, clock, twentieth, until_s=60.0)
        assert [met(each) for each in found.programs] == [paused_until_s < 11.0, True]


def test_nothing_is_begun_once_it_was_enough() -> None:
    (_, whole), (_, stopped) = ran(slots=64, stops=False), ran(slots=64, stops=True)
    assert stopped.submitted == whole.submitted[: len(stopped.submitted)]
    assert len(stopped.submitted) < len(whole.submitted)


def test_a_program_that_lost_a_call_is_decided() -> None:
    program = next(each for each in OFFERED.programs if each.num_calls > 1)
    enough = AllDecided([program], lambda: 0.0)
    assert not enough(Progress((), (Ended(f"{program.id}/0/0", "stop", None),)))
    assert enough(Progress((), (Ended(f"{program.id}/1/0", "abort", "slo_dropped: x"),)))
    assert enough(Progress((), (Ended(f"{program.id}/1/1", "abort", None),)))


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
