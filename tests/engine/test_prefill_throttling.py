"""Running prefills are throttled for better waiting requests, and only for those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serving.slo import BEST_EFFORT, Slo, SloKind
from tests.engine.test_placement import FixedOrder, run_steps
from tests.engine.test_virtual import STEP_S, Clock, DriveLog, drive, engine_of, submit

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")

TIGHT = Slo(kind=SloKind.DEADLINE, deadline_s=1.0)
LOOSE = Slo(kind=SloKind.DEADLINE, deadline_s=500.0)
STREAM = Slo(kind=SloKind.LATENCY, ttft_s=10 * STEP_S, tbt_s=1.0)


def prefilling_engine(clock: Clock, policy: str, slo: Slo, **changes: int) -> VirtualEngine:
    """An engine that has computed two of the thirty chunks of a prompt."""
    engine = engine_of(clock, policy, **{"max_model_tokens": 4096, "kv_blocks": 400} | changes)
    submit(engine, "long", 1920, 3, slo)
    for _ in range(2):
        engine.plan_step()
        clock.now_s += STEP_S
        engine.finish_step()
    return engine


def num_empty_steps(log: DriveLog) -> int:
    return sum(not composition.new_tokens for composition, _ in log.trace)


@pytest.mark.parametrize(
    ("policy", "long", "short"),
    [
        ("edf", LOOSE, TIGHT),
        ("edf", BEST_EFFORT, STREAM),
        ("calm", LOOSE, STREAM),
        ("calm", BEST_EFFORT, STREAM),
    ],
)
def test_a_better_request_is_computed_before_a_running_prefill(
    policy: str, long: Slo, short: Slo
) -> None:
    clock = Clock()
    engine = prefilling_engine(clock, policy, long)
    submit(engine, "short", 50, 3, short)
    log = drive(engine, clock)
    assert log.tokens == {"long": 3, "short": 3}
    first = next(
        index for index, (_, progress) in enumerate(log.trace) if "short" in progress.tokens
    )
    assert first < 10
    assert num_empty_steps(log) <= 1, "only the last step, after all requests have ended"


def test_a_running_prefill_gets_the_rest_of_the_step() -> None:
    clock = Clock()
    engine = prefilling_engine(clock, "edf", LOOSE)
    submit(engine, "short", 20, 3, TIGHT)
    composition = engine.plan_step()
    assert composition.new_tokens >= 60
    assert sorted(tokens for tokens, _ in composition.prefill_chunks)[0] == 20


def test_paused_requests_take_no_tokens_of_the_step() -> None:
    clock = Clock()
    engine = engine_of(clock, slots=64, max_model_tokens=4096, kv_blocks=400)
    script = FixedOrder(engine)
    paused = [f"paused {number}" for number in range(40)]
    for name in paused:
        submit(engine, name, 1, 30)
    script.run(*paused)
    run_steps(engine, clock, 2)
    submit(engine, "long", 1920, 3)
    script.run("long")
    run_steps(engine, clock, 2)
    submit(engine, "short", 20, 3)
    script.run("short", "long")
    assert sorted(tokens for tokens, _ in engine.plan_step().prefill_chunks) == [20, 44]


def test_a_running_prefill_is_not_throttled_for_a_worse_request() -> None:
    clock = Clock()
    engine = prefilling_engine(clock, "fcfs", BEST_EFFORT)
    submit(engine, "short", 50, 3)
    assert engine.plan_step().prefill_chunks == ((64, 128),)


@pytest.mark.parametrize("changes", [{"slots": 1}, {"kv_blocks": 124}])
def test_a_running_prefill_is_not_throttled_for_a_request_that_cannot_be_admitted(
    changes: dict[str, int],
) -> None:
    """There is no free slot, or no memory: it holds 120 of the blocks itself."""
    clock = Clock()
    engine = prefilling_engine(clock, "edf", LOOSE, **changes)
    for number in range(3):
        submit(engine, f"short {number}", 1900, 3, TIGHT)
    log = drive(engine, clock)
    assert len(log.ended) == 4
    assert num_empty_steps(log) <= 4, "only the last step, and one before each eviction"
