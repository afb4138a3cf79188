"""LoRA adapters: no step computes more of them than vLLM is configured for (max_loras)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from serving.slo import BEST_EFFORT, Slo, SloKind, to_tags
from tests.engine.test_placement import FixedOrder, run_steps
from tests.engine.test_virtual import STEP_S, Clock, DriveLog, drive, engine_of
from tests.strategies import PLAN_KINDS

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm", "one_adapter")

URGENT = Slo(kind=SloKind.DEADLINE, deadline_s=1.0)
PATIENT = Slo(kind=SloKind.DEADLINE, deadline_s=60.0)
STREAM = Slo(kind=SloKind.LATENCY, ttft_s=0.5, tbt_s=0.05)


@pytest.fixture
def one_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM runs one adapter at a time."""
    import serving.sim.drive.virtual_engine

    arguments_of = serving.sim.drive.virtual_engine._engine_arguments

    def with_adapters(config: Any) -> Any:
        arguments = arguments_of(config)
        arguments.enable_lora, arguments.max_loras, arguments.max_cpu_loras = True, 1, 4
        return arguments

    monkeypatch.setattr(serving.sim.drive.virtual_engine, "_engine_arguments", with_adapters)


def submit(
    engine: VirtualEngine,
    adapter: int,
    name: str,
    *,
    prompt_tokens: int = 60,
    output_tokens: int = 100,
    slo: Slo = BEST_EFFORT,
) -> None:
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=200, stop_token_ids=[1], extra_args=to_tags(slo) or None)
    lora = LoRARequest(f"adapter {adapter}", adapter, "/nowhere")
    engine._output_tokens[name] = output_tokens
    request = Request(name, [5] * prompt_tokens, params, None, lora_request=lora)
    engine.scheduler.add_request(request)


def test_no_request_is_evicted_for_one_that_only_waits_for_its_adapter() -> None:
    """There are slots and memory for all requests."""
    clock = Clock()
    engine = engine_of(clock, slots=8, kv_blocks=400, max_model_tokens=1024)
    script = FixedOrder(engine)
    for name in ("paused 1", "paused 2", "running"):
        submit(engine, 1, name)
    script.run("paused 1", "paused 2", "running")
    run_steps(engine, clock, 10)
    submit(engine, 2, "other adapter")
    script.run("running", "other adapter")
    assert run_steps(engine, clock, 20).tokens == {"running": 20}
    assert engine.preemptions == 0
    assert not any(each.num_preemptions for each in engine.scheduler.requests.values())


def test_a_resumed_request_waits_while_another_adapter_runs() -> None:
    clock = Clock()
    engine = engine_of(clock, slots=8, kv_blocks=400, max_model_tokens=1024)
    script = FixedOrder(engine)
    submit(engine, 1, "paused")
    script.run("paused")
    run_steps(engine, clock, 5)
    submit(engine, 2, "arrived later")
    script.run("arrived later")
    run_steps(engine, clock, 5)
    script.run("arrived later", "paused")
    assert run_steps(engine, clock, 5).tokens == {"arrived later": 5}
    script.run("paused", "arrived later")
    assert run_steps(engine, clock, 5).tokens == {"paused": 5}
    assert set(drive(engine, clock).ended) == {"paused", "arrived later"}
    assert engine.preemptions == 0


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_plans_of_each_kind_serve_adapters_in_turn(policy: str) -> None:
    choose, clock, log = random.Random(1), Clock(), DriveLog()
    engine = engine_of(
        clock, policy, slots=6, kv_blocks=120, step_tokens=128, max_model_tokens=1024
    )
    for number in range(60):
        submit(
            engine,
            choose.randint(1, 3),
            str(number),
            prompt_tokens=choose.choice([20, 100, 400]),
            output_tokens=choose.randint(1, 60),
            slo=choose.choice([URGENT, PATIENT, PATIENT, STREAM, BEST_EFFORT]),
        )
        for _ in range(choose.randint(1, 40)):
            if engine.has_work:
                log.step(engine, clock)
            else:
                clock.now_s += STEP_S
    ended = log.ended | drive(engine, clock).ended
    assert len(ended) == 60
    assert not engine.has_work
