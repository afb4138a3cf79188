"""Policies that distinguish prefills from decodes serve all in time if the machine can."""

from __future__ import annotations

import pytest

from serving.goodput import met
from serving.policies.table import PolicySpec
from serving.sim.programs.programs import Call
from serving.slo import SloKind
from tests.sim.one_engine import FIRST, outcomes, program

pytestmark = pytest.mark.usefixtures("imported_vllm")

BEGIN_S = 20.0


@pytest.mark.parametrize("policy", ["slai", "slos_serve", "calm"])
def test_streams_meet_their_slo_beside_long_prompts_with_late_deadlines(policy: str) -> None:
    """A step that prefills these prompts takes several times as long as a decode step."""
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
    results = outcomes([FIRST, *prompts, *streams], PolicySpec(policy), BEGIN_S + 80.0)
    assert [each.program_id for each in results if not met(each)] == []
