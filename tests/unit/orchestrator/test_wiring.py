"""Opening and closing runtimes: in a block, and from settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    Flow,
    RunHandle,
    Settings,
    flow,
    input_required,
    open_runtime,
    tool,
)
from orchestrator.events import CallStarted, Event, InputRequired, RunStarted
from orchestrator.testing import ScriptedEngine
from orchestrator.wiring import engine_config
from serving.engine.setup.config import RANDOM_MODEL
from serving.errors import EngineClosed, InvalidEngineConfig, ModelNotLoaded
from serving.generation import GenerationRequest
from serving.policies.table import DEFAULT_POLICY
from store.errors import StoreClosed, StoreUnreachable
from store.records import Status
from store.session import Store, open_store
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Recorded,
    all_runs,
    answer_ok,
    ask,
    store_url,
    until_generating,
)


async def test_open_runtimes_can_be_nested(tmp_path: Path) -> None:
    outer, inner = ScriptedEngine(answer_ok), ScriptedEngine(answer_ok)
    settings = Settings(store=store_url(tmp_path))
    async with open_runtime(settings, engine=outer):
        async with open_runtime(settings, engine=inner):
            await flow(ask)()
        await flow(ask)()
        await flow(ask)()
    assert (len(outer.requests), len(inner.requests)) == (2, 1)


async def test_the_engine_and_the_store_are_closed_after_an_error_in_the_block(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    with pytest.raises(KeyError):
        async with open_runtime(Settings(store=store_url(tmp_path)), engine=engine) as runtime:
            raise KeyError
    assert engine.is_closed
    with pytest.raises(EngineClosed):
        await runtime.run(flow(ask))
    with pytest.raises(StoreClosed):
        runtime.store.transaction()


async def read_runs(folder: Path) -> list[Recorded]:
    """All runs in the store, as the next process finds them."""
    async with await open_store(store_url(folder)) as store:
        return await all_runs(store)


@pytest.mark.parametrize("how", ["started", "in a task"])
async def test_closing_ends_runs_that_wait_for_the_engine_with_engine_closed(
    tmp_path: Path, how: str
) -> None:
    submitted: list[str] = []
    all_submitted = asyncio.Event()

    def answer(request: GenerationRequest) -> str:
        submitted.append(request.request_id)
        if len(submitted) == 20:
            all_submitted.set()
        return "all is well"

    engine = ScriptedEngine(answer, token_s=NEVER_S)
    async with open_runtime(Settings(store=store_url(tmp_path)), engine=engine) as runtime:
        begin = runtime.start if how == "started" else runtime.run
        runs = [asyncio.create_task(outcome_of(begin(flow(ask)))) for _ in range(20)]
        await all_submitted.wait()
    assert await asyncio.gather(*runs) == ["EngineClosed"] * 20
    records = await read_runs(tmp_path)
    assert [record.run.status for record in records] == [Status.FAILED] * 20
    assert [record.run.error_type for record in records] == ["EngineClosed"] * 20
    assert [record.still_running() for record in records] == [[]] * 20


async def outcome_of(run: Awaitable[object]) -> str:
    """The class of the error with which a run ends, or "an answer"."""
    try:
        await run
    except (Exception, asyncio.CancelledError) as error:
        return type(error).__name__
    return "an answer"


@tool(effects="pure")
async def takes_long() -> str:
    await asyncio.sleep(NEVER_S)
    return "done"


@flow
async def uses() -> str:
    return await takes_long()


@flow
async def asks() -> str:
    return await input_required("Publish?")


@flow
async def pauses() -> str:
    await asyncio.sleep(NEVER_S)
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize("left_by", ["its end", "an error", "a cancellation"])
@pytest.mark.parametrize(
    ("waits", "reached"), [(uses, CallStarted), (asks, InputRequired), (pauses, RunStarted)]
)
async def test_closing_cancels_runs_that_wait_for_anything_but_the_engine(
    tmp_path: Path, waits: Flow[[], str], reached: type[Event], left_by: str
) -> None:
    """A running tool, a question to a human, a pause: promptly, and recorded as cancelled."""
    began_s: list[float] = []
    handles: list[RunHandle[str]] = []

    async def block() -> None:
        settings = Settings(store=store_url(tmp_path))
        async with open_runtime(settings, engine=ScriptedEngine(answer_ok)) as runtime:
            handle = runtime.start(waits)
            handles.append(handle)
            async for event in handle.events():
                if isinstance(event, reached):
                    break
            began_s.append(time.monotonic())
            if left_by == "an error":
                raise KeyError
            if left_by == "a cancellation":
                current = asyncio.current_task()
                assert current is not None
                current.cancel()
                await asyncio.sleep(NEVER_S)

    ends = {"its end": "an answer", "an error": "KeyError", "a cancellation": "CancelledError"}
    assert await outcome_of(asyncio.create_task(block())) == ends[left_by]
    assert time.monotonic() - began_s[0] < 20
    assert handles[0].status is Status.CANCELLED
    [record] = await read_runs(tmp_path)
    assert record.run.status is Status.CANCELLED
    assert record.still_running() == []


async def test_a_run_that_was_ended_by_closing_is_resumed_by_the_next_runtime(
    tmp_path: Path,
) -> None:
    settings, stuck = Settings(store=store_url(tmp_path)), ScriptedEngine(answer_ok, token_s=9.0)
    named_flow = flow(ask).options(run_id="one")
    async with open_runtime(settings, engine=stuck) as runtime:
        handle = runtime.start(named_flow)
        await until_generating(stuck)
    assert handle.status is Status.FAILED
    async with open_runtime(settings, engine=ScriptedEngine(answer_ok)) as runtime:
        assert (await runtime.run(named_flow)).value == "all is well"


async def test_start_starts_the_engine_before_the_block_and_else_the_first_run_does(
    tmp_path: Path,
) -> None:
    settings = Settings(store=store_url(tmp_path))
    for start in (True, False):
        engine = ScriptedEngine(answer_ok)
        async with open_runtime(settings, engine=engine, start=start):
            assert engine.num_starts == start
            await flow(ask)()
            assert engine.num_starts >= 1


class Unstartable(ScriptedEngine):
    """An engine whose start fails, or never ends."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(answer_ok)
        self._error = error
        self.is_starting = asyncio.Event()

    async def start(self) -> None:
        self.is_starting.set()
        if self._error is not None:
            raise self._error
        await asyncio.sleep(NEVER_S)


@pytest.mark.parametrize("error", [ModelNotLoaded("m", "no room"), None])
async def test_an_engine_that_does_not_start_is_reported_at_entry_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Also if the waiting task is cancelled."""
    stores: list[Store] = []

    async def open_and_keep(*args: Any, **kwargs: Any) -> Store:
        stores.append(await open_store(*args, **kwargs))
        return stores[-1]

    monkeypatch.setattr("store.session.open_store", open_and_keep)
    engine = Unstartable(error)

    async def block() -> None:
        async with open_runtime(Settings(store=store_url(tmp_path)), engine=engine, start=True):
            raise AssertionError("the block is entered")

    waiting = asyncio.create_task(outcome_of(block()))
    await engine.is_starting.wait()
    if error is None:
        waiting.cancel()
    assert await waiting == ("CancelledError" if error is None else "ModelNotLoaded")
    assert engine.is_closed
    with pytest.raises(StoreClosed):
        stores[0].transaction()


async def test_a_store_that_cannot_be_opened_is_reported_before_the_engine_starts(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    with pytest.raises(StoreUnreachable):
        async with open_runtime(Settings(store="mysql://host/x"), engine=engine):
            pass
    assert engine.num_starts == 0
    assert engine.is_closed


async def test_a_flow_without_an_open_runtime_reads_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested with invalid settings, since valid ones would start an engine."""
    monkeypatch.setenv("ORCHESTRATE_STORE", store_url(tmp_path))
    monkeypatch.setenv("ORCHESTRATE_POLICY", "no such policy")
    for _ in range(2):
        with pytest.raises(InvalidEngineConfig, match="no such policy"):
            await flow(ask)()
    monkeypatch.delenv("ORCHESTRATE_POLICY")
    monkeypatch.setenv("ORCHESTRATE_STORE", "nowhere")
    with pytest.raises(StoreUnreachable):
        await flow(ask)()


def test_the_embedded_engine_uses_the_demo_model_by_default() -> None:
    config = engine_config(Settings())
    assert (config.model, config.policy.name) == (RANDOM_MODEL, DEFAULT_POLICY)
    config = engine_config(Settings(model="a/b", policy="fcfs", slots=3, kv_cache_bytes=5, seed=9))
    assert (config.model, config.policy.name, config.slots) == ("a/b", "fcfs", 3)
    assert (config.kv_cache_bytes, config.seed) == (5, 9)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("policy", "unheard-of"),
        ("policy_params", {"unheard_of": 1}),
        ("slots", 0),
        ("step_tokens", -1),
        ("step_tokens", 3),
        ("max_model_tokens", 0),
        ("kv_cache_bytes", 0),
        ("model", "  "),
    ],
)
def test_the_error_of_an_engine_setting_out_of_range_has_its_name(
    setting: str, value: object
) -> None:
    with pytest.raises(InvalidEngineConfig) as refused:
        engine_config(Settings(**{setting: value}))  # type: ignore[arg-type]
    assert refused.value.args[0] == setting.removesuffix("_params")
