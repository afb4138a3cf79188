"""While a connector loads a request's KV cache, the plan runs other requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from serving.slo import Slo, SloKind
from tests.engine.test_placement import planned_ids, run_steps
from tests.engine.test_virtual import Clock, drive, engine_of, submit
from tests.strategies import PLAN_KINDS

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm", "with_remote_cache")

URGENT = Slo(kind=SloKind.DEADLINE, deadline_s=5.0)
PATIENT = Slo(kind=SloKind.DEADLINE, deadline_s=60.0)


@pytest.fixture
def with_remote_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import KVTransferConfig

    import serving.sim.drive.virtual_engine

    arguments_of = serving.sim.drive.virtual_engine._engine_arguments

    def with_connector(config: Any) -> Any:
        arguments = arguments_of(config)
        arguments.kv_transfer_config = KVTransferConfig(
            kv_connector="RemoteKvCache",
            kv_role="kv_consumer",
            kv_connector_module_path="tests.engine.remote_kv_cache",
        )
        return arguments

    monkeypatch.setattr(serving.sim.drive.virtual_engine, "_engine_arguments", with_connector)


def end_loading(engine: VirtualEngine, *names: str) -> None:
    """The KV cache of these requests is loaded."""
    engine.scheduler.finished_recving_kv_req_ids.update(names)


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_other_requests_are_computed_while_the_caches_of_urgent_ones_are_loaded(
    policy: str,
) -> None:
    """There are four slots, and four urgent requests that wait for their KV cache."""
    clock = Clock()
    engine = engine_of(clock, policy, kv_blocks=200, max_model_tokens=1024)
    remote = [f"remote {number}" for number in range(4)]
    for name in remote:
        submit(engine, name, 200, 20, URGENT)
    run_steps(engine, clock, 3)
    for number in range(4):
        submit(engine, f"local {number}", 16, 60, PATIENT)
    log = run_steps(engine, clock, 20)
    assert set(log.tokens) == {f"local {number}" for number in range(4)}
    assert engine.scheduler.placement.blocked.keys().isdisjoint(planned_ids(engine))
    end_loading(engine, *remote)
    log = run_steps(engine, clock, 200)
    assert set(remote) <= log.ended.keys()
    drive(engine, clock)
    assert not engine.has_work
    assert not engine.scheduler.placement.blocked


def test_a_paused_request_loses_its_slot_to_one_whose_cache_is_loaded() -> None:
    clock = Clock()
    engine = engine_of(clock, "edf", slots=1, kv_blocks=200, max_model_tokens=1024)
    submit(engine, "remote", 200, 5, URGENT)
    run_steps(engine, clock, 2)
    submit(engine, "local", 20, 100, PATIENT)
    assert run_steps(engine, clock, 10).tokens == {"local": 10}
    end_loading(engine, "remote")
    assert "remote" in run_steps(engine, clock, 10).ended
    assert set(drive(engine, clock).ended) == {"local"}


def test_a_request_that_is_aborted_during_loading_leaves_nothing_behind() -> None:
    clock = Clock()
    engine = engine_of(clock, "calm", kv_blocks=200, max_model_tokens=1024)
    submit(engine, "remote", 200, 5, URGENT)
    run_steps(engine, clock, 2)
    assert list(engine.scheduler.placement.blocked) == ["remote"]
    engine.abort("remote")
    assert not engine.scheduler.placement.blocked
