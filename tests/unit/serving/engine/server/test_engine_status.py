"""The engine's status: sent by its process, received by the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.status_sender import (
    ADDRESS_VARIABLE,
    PERIOD_S,
    StatusSender,
    status_of,
)
from serving.engine.server.engine_status import EngineStatus
from serving.router.snapshot import ReplicaSnapshot, Speed
from serving.slo import Slo
from tests.unit.serving.serving_examples import deadline, request, running, step

RECEIVED_S = 5.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def received(clock: Clock, registry: CollectorRegistry) -> Iterator[EngineStatus]:
    status = EngineStatus(("m",), registry=registry, clock=clock)
    yield status
    status.close()


@pytest.fixture
def sender(received: EngineStatus) -> Iterator[StatusSender]:
    """Sends to `received`, as the engine's process does."""
    sender = StatusSender.of_environment()
    assert sender is not None
    yield sender
    sender.close()


@pytest.fixture
def unheard() -> Iterator[StatusSender]:
    """Sends to an address at which nobody listens."""
    sender = StatusSender("ipc:///tmp/nobody-listens-here")
    yield sender
    sender.close()


def status(*requests: Any) -> dict[str, Any]:
    view = step(*requests, kv_tokens=1600, free_kv_tokens=320)
    return status_of(view, StepTracker(), block_tokens=16, plans=3, plan_s=0.5)


async def receive(received: EngineStatus, sender: StatusSender, message: dict[str, Any]) -> None:
    received.start()
    sender.send(message, 0.0, is_idle=False)
    async with asyncio.timeout(RECEIVED_S):
        while received.document() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_status_travels_from_the_engine_to_routers_and_prometheus(
    received: EngineStatus, sender: StatusSender, registry: CollectorRegistry
) -> None:
    message = status(request("a", slo=deadline(9.0)), running("b"), request("c"))
    await receive(received, sender, message)
    document = received.document()
    assert document is not None
    assert (document["models"], document["boot_id"]) == (["m"], received.boot_id)
    fields = document["snapshot"]
    speed = Speed(**fields.pop("speed"))
    snapshot = ReplicaSnapshot("r", speed, **fields)
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.kv_blocks) == (1, 2, 100)
    assert (snapshot.free_kv_blocks, snapshot.block_tokens) == (20, 16)
    assert snapshot.work_s > 0
    queued = {"kind": "deadline", "state": "waiting"}
    assert registry.get_sample_value("orchestrate_queue_requests", queued) == 1
    assert registry.get_sample_value("orchestrate_plans_total") == 3
    assert registry.get_sample_value("orchestrate_plan_seconds_total") == 0.5


async def test_a_status_ages_while_the_engine_has_requests(
    received: EngineStatus, sender: StatusSender, clock: Clock
) -> None:
    await receive(received, sender, status(request("a")))
    clock.now_s = 7.0
    assert received.age_s == 7.0


async def test_the_status_of_an_idle_engine_stays_true(
    received: EngineStatus, sender: StatusSender, clock: Clock
) -> None:
    await receive(received, sender, status())
    clock.now_s = 7.0
    assert received.age_s == 0.0


def test_before_the_first_status_there_is_none(
    received: EngineStatus, registry: CollectorRegistry
) -> None:
    assert received.document() is None
    assert list(registry.collect()) == []


async def test_a_dead_engine_s_status_is_forgotten_and_the_next_one_is_another_replica(
    received: EngineStatus, sender: StatusSender, registry: CollectorRegistry
) -> None:
    await receive(received, sender, status(request("a")))
    former = received.boot_id
    received.forget()
    assert received.document() is None
    assert list(registry.collect()) == []
    received.take(json.dumps(status()).encode())
    document = received.document()
    assert document is not None
    assert document["boot_id"] == received.boot_id != former


def test_a_status_is_due_after_a_period_and_when_the_last_request_ends(
    unheard: StatusSender,
) -> None:
    assert unheard.is_due(0.0, is_idle=True)
    unheard.send(status(), 1.0, is_idle=False)
    assert not unheard.is_due(1.0 + PERIOD_S / 2, is_idle=False)
    assert unheard.is_due(1.0 + PERIOD_S, is_idle=False)
    assert unheard.is_due(1.0 + PERIOD_S / 2, is_idle=True)
    unheard.send(status(), 1.0, is_idle=True)
    assert not unheard.is_due(1.0 + PERIOD_S / 2, is_idle=True)


def test_without_a_receiver_nothing_waits(unheard: StatusSender) -> None:
    for _ in range(1000):
        unheard.send(status(request("a", slo=Slo())), 0.0, is_idle=False)


def test_without_an_address_there_is_no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    assert StatusSender.of_environment() is None
