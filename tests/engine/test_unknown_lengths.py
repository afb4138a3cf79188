"""Requests without a predicted length, and with max_tokens far above their length, are in time."""

from __future__ import annotations

import pytest

from serving.slo import Slo, SloKind
from tests.engine.test_virtual import STEP_S, Clock, engine_of

pytestmark = pytest.mark.usefixtures("imported_vllm")

DEADLINE = Slo(kind=SloKind.DEADLINE, deadline_s=3.0)
STREAM = Slo(kind=SloKind.LATENCY, ttft_s=0.5, tbt_s=0.1)


def num_in_time(policy: str, slo: Slo, *, every_steps: int) -> int:
    """Number of requests, of forty that arrive one after another, that end within 3 s."""
    clock = Clock()
    engine = engine_of(clock, policy, kv_blocks=400, max_model_tokens=4096)
    arrived: dict[str, float] = {}
    ended = 0
    for step in range(40 * every_steps + 200):
        if step % every_steps == 0 and len(arrived) < 40:
            name = f"{len(arrived):02}"
            arrived[name] = clock.now_s
            engine.submit(name, prompt=[5] * 30, output_tokens=25, slo=slo, max_tokens=3000)
        if engine.has_work:
            engine.plan_step()
        clock.now_s += STEP_S
        if engine._step is not None:
            for end in engine.finish_step().ended:
                ended += end.finish_reason == "stop" and clock.now_s <= arrived[end.request_id] + 3
    return ended


@pytest.mark.parametrize("slo", [DEADLINE, STREAM], ids=["deadline", "latency"])
@pytest.mark.parametrize("every_steps", [30, 8, 7])
def test_calm_and_fcfs_serve_all_of_them_in_time(slo: Slo, every_steps: int) -> None:
    assert num_in_time("fcfs", slo, every_steps=every_steps) == 40
    assert num_in_time("calm", slo, every_steps=every_steps) == 40
