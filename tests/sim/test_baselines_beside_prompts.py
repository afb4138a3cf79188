"""The rivals that tell prompts from decodes are in time where there is room for all."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.metrics.goodput import met
from serving.sim.programs.programs import Call
from serving.slo import SloKind
from tests.sim.one_engine import FIRST, outcomes, program

pytestmark = pytest.mark.usefixtures("imported_vllm")

BEGIN_S = 20.0


@pytest.mark.parametrize("policy", ["slai", "slos_serve", "calm"])
def test_streams_are_in_time_beside_long_prompts_that_can_wait(policy: str) -> None:
    """Steps that read those take several times as long as a decode step does."""
    prompts = [
        program(f"prompt {n}", BEGIN_S, Call(8000, 50), kind=SloKind.DEADLINE, deadline_s=60.0)
        for n in range(8)
    ]
    streams = [
        program(
            f"stream {n}",
            BEGIN_S + 0.5,
            Call(200, 200),
            kind=SloKind.LATENCY,
            ttft_s=2.0,
            tbt_s=0.1,
        )
        for n in range(10)
    ]
    seen = outcomes([FIRST, *prompts, *streams], PolicySpec(policy), BEGIN_S + 80.0)
    assert [each.program_id for each in seen if not met(each)] == []
