"""Who reads a long prompt gives way to who comes before it in the plan, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serving.slo import BEST_EFFORT, Slo, SloKind
from tests.engine.test_placement import Ordered, go_on
from tests.engine.test_virtual import STEP_S, Clock, Seen, drive, engine_of, submit

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")

SOON = Slo(kind=SloKind.DEADLINE, deadline_s=1.0)
LATER = Slo(kind=SloKind.DEADLINE, deadline_s=500.0)
STREAM = Slo(kind=SloKind.LATENCY, ttft_s=10 * STEP_S, tbt_s=1.0)


def begun(clock: Clock, policy: str, slo: Slo, **changes: int) -> VirtualEngine:
    """An engine that has read two chunks of a prompt of thirty."""
    engine = engine_of(clock, policy, **{"max_model_tokens": 4096, "kv_blocks": 400} | changes)
    submit(engine, "long", 1920, 3, slo)
    for _ in range(2):
        engine.plan_step()
        clock.now_s += STEP_S
        engine.finish_step()
    return engine


def empty_steps(seen: Seen) -> int:
    return sum(not composition.new_tokens for composition, _ in seen.trace)


@pytest.mark.parametrize(
    ("policy", "long", "short"),
    [
        ("edf", LATER, SOON),
        ("edf", BEST_EFFORT, STREAM),
        ("calm", LATER, STREAM),
        ("calm", BEST_EFFORT, STREAM),
    ],
)
def test_who_is_ahead_in_the_plan_is_read_before_a_prompt_under_way(
    policy: str, long: Slo, short: Slo
) -> None:
    clock = Clock()
    engine = begun(clock, policy, long)
    submit(engine, "short", 50, 3, short)
    seen = drive(engine, clock)
    assert seen.tokens == {"long": 3, "short": 3}
    first = next(place for place, (_, made) in enumerate(seen.trace) if "short" in made.tokens)
    assert first < 10
    assert empty_steps(seen) <= 1, "but for the last, in which nobody is left"


def test_a_prompt_under_way_has_what_is_left_of_the_step() -> None:
    clock = Clock()
    engine = begun(clock, "edf", LATER)
    submit(engine, "short", 20, 3, SOON)
    composition = engine.plan_step()
    assert composition.new_tokens >= 60
    assert sorted(tokens for tokens, _ in composition.prefill_chunks)[0] == 20


def test_who_is_paused_takes_nothing_of_the_step() -> None:
    clock = Clock()
    engine = engine_of(clock, slots=64, max_model_tokens=4096, kv_blocks=400)
    script = Ordered(engine)
    paused = [f"paused {number}" for number in range(40)]
    for name in paused:
        submit(engine, name, 1, 30)
    script.run(*paused)
    go_on(engine, clock, 2)
    submit(engine, "long", 1920, 3)
    script.run("long")
    go_on(engine, clock, 2)
    submit(engine, "short", 20, 3)
    script.run("short", "long")
    assert sorted(read for read, _ in engine.plan_step().prefill_chunks) == [20, 44]


def test_a_prompt_under_way_gives_nothing_up_to_who_comes_after_it() -> None:
    clock = Clock()
    engine = begun(clock, "fcfs", BEST_EFFORT)
    submit(engine, "short", 50, 3)
    assert engine.plan_step().prefill_chunks == ((64, 128),)


@pytest.mark.parametrize("changes", [{"slots": 1}, {"kv_blocks": 124}])
def test_a_prompt_under_way_goes_on_where_there_is_no_room_for_another(
    changes: dict[str, int],
) -> None:
    """No slot, or no memory: 120 of the blocks are its own."""
    clock = Clock()
    engine = begun(clock, "edf", LATER, **changes)
    for number in range(3):
        submit(engine, f"short {number}", 1900, 3, SOON)
    seen = drive(engine, clock)
    assert len(seen.ended) == 4
    assert empty_steps(seen) <= 4, "but for the last, and those after which a slot is taken"
