"""The cost of frames: what is measured adds up, whatever it comes to."""

from __future__ import annotations

import pytest

from benchmarks.frames import PARTS, WARM_UP_FRAMES, measure, table, timed_engine
from serving.policies.table import PolicySpec
from serving.slo import BEST_EFFORT

pytestmark = pytest.mark.usefixtures("imported_vllm")


def test_a_frame_is_noted_for_each_plan_and_no_other_step() -> None:
    """One plan of first come, first served holds until somebody arrives or ends."""
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


@pytest.mark.parametrize("policy", ["fcfs", "calm_published"])
def test_the_parts_of_a_frame_make_up_the_whole(policy: str) -> None:
    cost = measure(policy, num_requests=40, num_frames=10)
    assert (cost.policy, cost.requests) == (policy, 40)
    assert 10 <= cost.frames <= 10 + WARM_UP_FRAMES
    parts = [getattr(cost, f"{name}_ms") for name in PARTS]
    assert all(0 <= part.median <= part.p95 for part in (*parts, cost.frame_ms))
    assert max(part.median for part in parts) <= cost.frame_ms.median
    assert cost.steps_per_frame >= 1
    assert cost.share > 0
    assert "simulated" in table([cost])
