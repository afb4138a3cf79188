"""The cost of frames: each plan is measured once, and the parts sum up to the frame."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.frames import PARTS, WARM_UP_FRAMES, RequestPool, measure, table, timed_engine
from serving.policies.table import PolicySpec
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import BEST_EFFORT, SloKind

pytestmark = pytest.mark.usefixtures("imported_vllm")


def test_a_frame_is_recorded_for_each_plan_and_not_for_other_steps() -> None:
    """A plan of fcfs holds until a request arrives or ends."""
    engine, frames, now_s = timed_engine(PolicySpec("fcfs"))
    engine.submit("a", prompt=[5] * 9, output_tokens=20, slo=BEST_EFFORT, max_tokens=20)
    for _ in range(10):
        engine.plan_step()
        engine.finish_step()
        now_s[0] += 0.02
    assert len(frames) == 1
    engine.submit("b", prompt=[5] * 9, output_tokens=20, slo=BEST_EFFORT, max_tokens=20)
    engine.plan_step()
    assert len(frames) == 2
    assert all(part >= 0 for frame in frames for part in frame)


def test_all_requests_of_the_pool_have_the_same_max_tokens() -> None:
    limits: dict[int, int] = {}

    class RecordingEngine:
        def submit(self, request_id: str, *, output_tokens: int, max_tokens: int, **_: Any) -> None:
            limits[output_tokens] = max_tokens

    pool = RequestPool(RecordingEngine())  # type: ignore[arg-type]
    stages = (Stage((Call(10, 50), Call(10, 5000))),)
    program = Program(
        id="p", application="", kind=SloKind.BEST_EFFORT, arrival_s=0.0, stages=stages
    )
    pool._calls = iter([(index, program, call) for index, call in enumerate(program.all_calls())])
    pool.fill(2, [0.0])
    assert limits == {50: 4096, 5000: 4096}


@pytest.mark.parametrize("policy", ["fcfs", "calm_published"])
def test_the_parts_of_a_frame_are_at_most_the_frame(policy: str) -> None:
    cost = measure(policy, num_requests=40, num_frames=10)
    assert (cost.policy, cost.requests) == (policy, 40)
    assert 10 <= cost.frames <= 10 + WARM_UP_FRAMES
    parts = [getattr(cost, f"{name}_ms") for name in PARTS]
    assert all(0 <= part.median <= part.p95 for part in (*parts, cost.frame_ms))
    assert max(part.median for part in parts) <= cost.frame_ms.median
    assert cost.steps_per_frame >= 1
    assert cost.share > 0
    assert "simulated" in table([cost])
