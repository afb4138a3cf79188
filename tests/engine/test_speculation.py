"""Speculative decoding left on: what is drafted beside a decode is no prompt and no service."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from serving.policies.baselines.orderings import fcfs
from serving.slo import Slo, SloKind
from serving.step_cost import STEP_COSTS
from tests.engine.apart import printed_by
from tests.engine.test_placement import go_on
from tests.engine.test_virtual import DRAFTS, Clock, drive, engine_of, submit
from tests.engine.vllm_driver import decide_by

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")


def test_a_decode_with_drafts_is_a_decode() -> None:
    clock = Clock()
    engine = engine_of(clock, **DRAFTS)
    submit(engine, "one", 20, 100)
    submit(engine, "two", 30, 100)
    seen = drive(engine, clock)
    made = [composition for composition, _ in seen.trace]
    assert {len(each.prefill_chunks) for each in made[2:]} == {0}
    assert Counter(each.new_tokens for each in made)[10] > 25  # both, with four drafts each
    assert len(made) < 50
    speculation = engine.scheduler.speculation
    assert 2.5 < speculation.kept_per_decode <= 3.0
    assert 4.5 < speculation.computed_per_decode <= 5.0
    assert (engine.preemptions, engine.recomputed_tokens) == (0, 0)


@pytest.mark.parametrize("policy", ["calm", "edf", "slai", "slos_serve"])
def test_streams_for_whom_there_is_room_are_all_in_time(policy: str) -> None:
    """So many that each policy limits its steps, which drafts make five times as large."""
    promise = Slo(kind=SloKind.LATENCY, ttft_s=5.0, tbt_s=0.05)
    clock = Clock()
    engine = engine_of(
        clock,
        policy,
        slots=128,
        step_tokens=2048,
        kv_blocks=20_000,
        max_model_tokens=2048,
        **DRAFTS,
    )
    for number in range(100):
        submit(engine, f"{number:03}", 200, 150, promise)
    times_s = token_times_s(engine, clock)
    late = [
        name
        for name, each in times_s.items()
        if any(time_s > 5.0 + 0.05 * place for place, time_s in enumerate(each))
    ]
    assert sorted(map(len, times_s.values())) == [150] * 100
    assert not late


def token_times_s(engine: VirtualEngine, clock: Clock) -> dict[str, list[float]]:
    """When each token came, on a simulated A100."""
    cost, times_s = STEP_COSTS["a100-llama3-8b"], defaultdict[str, list[float]](list)
    while engine.has_work:
        made = engine.plan_step()
        clock.now_s += cost.seconds(made) if made.new_tokens else 0.001
        for name in engine.finish_step().tokens:
            times_s[name].append(clock.now_s)
    return times_s


def test_users_pay_for_what_they_are_given_not_for_what_was_drafted() -> None:
    clock = Clock()
    engine = engine_of(clock, **DRAFTS)
    submit(engine, "one", 20, 150)
    while engine.scheduler.requests["one"].num_output_tokens < 100:
        engine.plan_step()
        clock.now_s += 0.02
        engine.finish_step()
    view = engine.scheduler.view()
    [served] = view.requests.program_tokens.tolist()
    assert served == pytest.approx(20 + 100, rel=0.1)


@pytest.mark.slow
def test_drafts_leave_the_real_engine_s_answers_as_they_are() -> None:
    plain, drafted = printed_by("drafting", "fcfs", "0"), printed_by("drafting", "calm", "3")
    assert len(plain["answers"]) == 10
    assert drafted["answers"] == plain["answers"]
    assert drafted["computes"] > 1.1


@pytest.mark.parametrize(("step_tokens", "chunk_tokens"), [(2, 1), (16, 1), (16, 4), (3, None)])
def test_one_that_finds_all_but_a_token_in_the_cache_is_computed_with_its_drafts(
    step_tokens: int, chunk_tokens: int | None
) -> None:
    """vLLM takes it for a decode, and relies on a step that has room for all of its drafts."""
    clock = Clock()
    engine = engine_of(clock, prefix_caching=True, **DRAFTS)
    decide_by(
        engine.scheduler,
        lambda view: fcfs(view)._replace(step_tokens=step_tokens, chunk_tokens=chunk_tokens),
    )
    submit(engine, "first", 33, 5)
    assert "first" in go_on(engine, clock, 60).ended
    submit(engine, "decodes", 40, 190)
    assert go_on(engine, clock, 30).tokens["decodes"] > 1
    submit(engine, "again", 33, 5)
    assert set(drive(engine, clock).ended) == {"decodes", "again"}
