"""calm on a machine with time to spare, where prompts that came at once fill its steps."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.goodput import tokens
from serving.sim.programs import Call, Program, Stage
from serving.slo import SloKind
from tests.sim.one_engine import outcomes

pytestmark = pytest.mark.usefixtures("imported_vllm")

NUM_STREAMS, STREAM_TOKENS = 5, 300
BEGIN_S = 100.0


def on_schedule(num_prompts: int, deadline_s: float | None, *, save: bool) -> float:
    """The share of the tokens of streams that kept their promise of 50 ms each."""
    first = Program(
        id="first",
        application="first",
        kind=SloKind.DEADLINE,
        arrival_s=0.0,
        stages=(Stage((Call(50, 3),)),),
        deadline_s=9.0,
    )
    streams = [
        Program(
            id=f"stream-{number}",
            application="stream",
            kind=SloKind.LATENCY,
            arrival_s=BEGIN_S + 0.01 * number,
            stages=(Stage((Call(200, STREAM_TOKENS),)),),
            ttft_s=1.0,
            tbt_s=0.05,
        )
        for number in range(NUM_STREAMS)
    ]
    prompts = [
        Program(
            id=f"prompt-{number}",
            application="prompt",
            kind=SloKind.BEST_EFFORT if deadline_s is None else SloKind.DEADLINE,
            arrival_s=BEGIN_S + 1.0,
            stages=(Stage((Call(4000, 20),)),),
            deadline_s=deadline_s,
        )
        for number in range(num_prompts)
    ]
    seen = outcomes([first, *streams, *prompts], PolicySpec("calm", {"save": save}), BEGIN_S + 30.0)
    earned = sum(tokens(each) for each in seen if each.kind is SloKind.LATENCY)
    return earned / (NUM_STREAMS * STREAM_TOKENS)


@pytest.mark.parametrize(
    ("num_prompts", "deadline_s"), [(60, 300.0), (60, None)], ids=["promised", "untagged"]
)
def test_streams_stay_on_schedule_beside_prompts_that_came_at_once(
    num_prompts: int, deadline_s: float | None
) -> None:
    assert on_schedule(num_prompts, deadline_s, save=True) > 0.85
    assert on_schedule(num_prompts, deadline_s, save=False) < 0.6, "there is nothing to mend"
