"""While a request's KV cache is loaded from elsewhere, others have the places of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from serving.policies.table import POLICIES
from serving.slo import Slo, SloKind
from tests.engine.test_placement import go_on, views_of
from tests.engine.test_virtual import Clock, drive, engine_of, submit

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

pytestmark = pytest.mark.usefixtures("imported_vllm", "with_far_cache")

URGENT = Slo(kind=SloKind.DEADLINE, deadline_s=5.0)
PATIENT = Slo(kind=SloKind.DEADLINE, deadline_s=60.0)


@pytest.fixture
def with_far_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import KVTransferConfig

    import serving.sim.drive.virtual_engine

    arguments_of = serving.sim.drive.virtual_engine._engine_arguments

    def connected(config: Any) -> Any:
        arguments = arguments_of(config)
        arguments.kv_transfer_config = KVTransferConfig(
            kv_connector="FarCache",
            kv_role="kv_consumer",
            kv_connector_module_path="tests.engine.far_cache",
        )
        return arguments

    monkeypatch.setattr(serving.sim.drive.virtual_engine, "_engine_arguments", connected)


def loaded(engine: VirtualEngine, *names: str) -> None:
    """The KV cache of these has come."""
    engine.scheduler.finished_recving_kv_req_ids.update(names)


@pytest.mark.parametrize("policy", POLICIES)
def test_others_are_computed_while_it_is_loaded(policy: str) -> None:
    """There are four slots, and four requests are loaded, which are due sooner than the others."""
    clock = Clock()
    engine = engine_of(clock, policy, kv_blocks=200, max_model_tokens=1024)
    far = [f"far {number}" for number in range(4)]
    for name in far:
        submit(engine, name, 200, 20, URGENT)
    go_on(engine, clock, 3)
    for number in range(4):
        submit(engine, f"near {number}", 16, 60, PATIENT)
    seen = go_on(engine, clock, 20)
    assert set(seen.tokens) == {f"near {number}" for number in range(4)}
    assert engine.scheduler.placement.blocked.keys().isdisjoint(views_of(engine))
    loaded(engine, *far)
    seen = go_on(engine, clock, 200)
    assert set(far) <= seen.ended.keys()
    drive(engine, clock)
    assert not engine.has_work
    assert not engine.scheduler.placement.blocked


def test_who_pauses_gives_its_slot_to_one_whose_cache_has_come() -> None:
    clock = Clock()
    engine = engine_of(clock, "edf", slots=1, kv_blocks=200, max_model_tokens=1024)
    submit(engine, "far", 200, 5, URGENT)
    go_on(engine, clock, 2)
    submit(engine, "near", 20, 100, PATIENT)
    assert go_on(engine, clock, 10).tokens == {"near": 10}
    loaded(engine, "far")
    assert "far" in go_on(engine, clock, 10).ended
    assert set(drive(engine, clock).ended) == {"near"}


def test_one_that_leaves_while_it_is_loaded_is_forgotten() -> None:
    clock = Clock()
    engine = engine_of(clock, "calm", kv_blocks=200, max_model_tokens=1024)
    submit(engine, "far", 200, 5, URGENT)
    go_on(engine, clock, 2)
    assert list(engine.scheduler.placement.blocked) == ["far"]
    engine.abort("far")
    assert not engine.scheduler.placement.blocked
