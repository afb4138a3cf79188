"""Speculative decoding: drafted tokens count neither as prompt tokens nor as service."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from serving.policies.baselines.orderings import fcfs
from serving.slo import Slo, SloKind
from serving.step_cost import STEP_COSTS
from tests.engine.own_process import json_of_module
from tests.engine.test_placement import run_steps
from tests.engine.test_virtual import DRAFTS, Clock, drive, engine_of, submit
from tests.engine.vllm_driver import use_policy

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm")


def test_a_decode_with_drafts_counts_as_a_decode() -> None:
    clock = Clock()
    engine = engine_of(clock, **DRAFTS)
    submit(engine, "one", 20, 100)
    submit(engine, "two", 30, 100)
    steps = [composition for composition, _ in drive(engine, clock).trace]
    assert {len(each.prefill_chunks) for each in steps[2:]} == {0}
    assert Counter(each.new_tokens for each in steps)[10] > 25  # both, with four drafts each
    assert len(steps) < 50
    speculation = engine.scheduler.speculation
    assert 2.5 < speculation.kept_per_decode <= 3.0
    assert 4.5 < speculation.computed_per_decode <= 5.0
    assert (engine.preemptions, engine.recomputed_tokens) == (0, 0)


@pytest.mark.parametrize("policy", ["calm", "edf", "slai", "slos_serve"])
def test_streams_within_capacity_are_all_in_time(policy: str) -> None:
    """With this many streams each policy limits steps, and drafts make them five times larger."""
    slo = Slo(kind=SloKind.LATENCY, ttft_s=5.0, tbt_s=0.05)
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
        submit(engine, f"{number:03}", 200, 150, slo)
    times_s = token_times_s(engine, clock)
    late = [
        name
        for name, each in times_s.items()
        if any(time_s > 5.0 + 0.05 * index for index, time_s in enumerate(each))
    ]
    assert sorted(map(len, times_s.values())) == [150] * 100
    assert not late


def token_times_s(engine: VirtualEngine, clock: Clock) -> dict[str, list[float]]:
    """The time of each token, on a simulated A100."""
    cost, times_s = STEP_COSTS["a100-llama3-8b"], defaultdict[str, list[float]](list)
    while engine.has_work:
        composition = engine.plan_step()
        clock.now_s += cost.seconds(composition) if composition.new_tokens else 0.001
        for name in engine.finish_step().tokens:
            times_s[name].append(clock.now_s)
    return times_s


def test_drafted_tokens_do_not_count_as_service() -> None:
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
def test_drafts_do_not_change_the_answers_of_the_real_engine() -> None:
    plain, drafted = (
        json_of_module("drafting", "fcfs", "0"),
        json_of_module("drafting", "calm", "3"),
    )
    assert len(plain["answers"]) == 10
    assert drafted["answers"] == plain["answers"]
    assert drafted["computed_per_decode"] > 1.1


@pytest.mark.parametrize(("step_tokens", "chunk_tokens"), [(2, 1), (16, 1), (16, 4), (3, None)])
def test_a_request_with_one_uncached_token_is_computed_with_its_drafts(
    step_tokens: int, chunk_tokens: int | None
) -> None:
    """vLLM treats it as a decode, and requires a step with enough tokens for all drafts."""
    clock = Clock()
    engine = engine_of(clock, prefix_caching=True, **DRAFTS)
    use_policy(
        engine.scheduler,
        lambda view: fcfs(view)._replace(step_tokens=step_tokens, chunk_tokens=chunk_tokens),
    )
    submit(engine, "first", 33, 5)
    assert "first" in run_steps(engine, clock, 60).ended
    submit(engine, "decodes", 40, 190)
    assert run_steps(engine, clock, 30).tokens["decodes"] > 1
    submit(engine, "again", 33, 5)
    assert set(drive(engine, clock).ended) == {"decodes", "again"}
