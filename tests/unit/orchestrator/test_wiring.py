"""Opening runtimes: one in a block, one that many flows share, and what settings make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from orchestrator import Runtime, Settings, flow, open_runtime
from orchestrator.testing import ScriptedEngine
from orchestrator.wiring import engine_config, shared_runtime, unannounced_runtime
from serving.engine.config import DEMO_MODEL
from serving.errors import EngineClosed, InvalidEngineConfig, ModelNotLoaded
from serving.policies.table import DEFAULT_POLICY
from store.errors import StoreClosed, StoreUnreachable
from tests.unit.orchestrator.orchestrator_samples import answer_ok, ask, store_url


class Openings:
    """Opens runtimes on scripted engines, and keeps the engines."""

    def __init__(self, folder: Path) -> None:
        self.engines: list[ScriptedEngine] = []
        self.failures: list[Exception] = []
        self._settings = Settings(store=store_url(folder))

    def __call__(self) -> AbstractAsyncContextManager[Runtime]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Runtime]:
        await asyncio.sleep(0.001)
        if self.failures:
            raise self.failures.pop()
        engine = ScriptedEngine(answer_ok)
        self.engines.append(engine)
        async with unannounced_runtime(self._settings, engine=engine) as runtime:
            yield runtime


async def run_shared(openings: Openings) -> str:
    """As a flow that is awaited without an open runtime."""
    async with shared_runtime(openings) as runtime:
        return (await runtime.run(flow(ask))).value


async def test_flows_at_once_share_one_engine_and_the_last_closes_it(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    answers = await asyncio.gather(*(run_shared(openings) for _ in range(10)))
    assert answers == ["all is well"] * 10
    [engine] = openings.engines
    assert engine.is_closed
    assert len(engine.requests) == 10


async def test_flows_one_after_the_other_each_open_and_close_their_own(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    for _ in range(3):
        await run_shared(openings)
    assert [engine.is_closed for engine in openings.engines] == [True] * 3
    assert [len(engine.requests) for engine in openings.engines] == [1] * 3


async def test_a_start_that_fails_leaves_the_next_one_able_to_start(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    openings.failures = [ModelNotLoaded("m", "no room") for _ in range(2)]
    answers = await asyncio.gather(
        *(run_shared(openings) for _ in range(5)), return_exceptions=True
    )
    assert [type(answer) for answer in answers[:2]] == [ModelNotLoaded] * 2
    assert answers[2:] == ["all is well"] * 3
    assert len(openings.engines) == 1
    assert openings.engines[0].is_closed


async def test_a_user_that_is_cancelled_leaves_the_runtime_to_the_others(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    first = asyncio.create_task(run_shared(openings))
    others = [asyncio.create_task(run_shared(openings)) for _ in range(3)]
    await asyncio.sleep(0.002)
    first.cancel()
    for other in others:
        assert await other == "all is well"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert all(engine.is_closed for engine in openings.engines)


async def test_after_the_last_the_opening_task_does_not_keep_the_closed_runtime(
    tmp_path: Path,
) -> None:
    """The task that opened it may go on, and must get one that is open."""
    openings = Openings(tmp_path)
    staying = asyncio.Event()

    async def first() -> str:
        await asyncio.gather(run_shared(openings), asyncio.create_task(stays()))
        return await run_shared(openings)

    async def stays() -> None:
        async with shared_runtime(openings):
            await asyncio.sleep(0.01)
            staying.set()

    assert await first() == "all is well"
    assert staying.is_set()
    assert all(engine.is_closed for engine in openings.engines)


async def test_a_runtime_that_is_open_is_used_rather_than_shared(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    async with open_runtime(Settings(store=store_url(tmp_path)), engine=ScriptedEngine(answer_ok)):
        await run_shared(openings)
    assert openings.engines == []


async def test_runtimes_may_be_open_within_each_other(tmp_path: Path) -> None:
    outer, inner = ScriptedEngine(answer_ok), ScriptedEngine(answer_ok)
    settings = Settings(store=store_url(tmp_path))
    async with open_runtime(settings, engine=outer):
        async with open_runtime(settings, engine=inner):
            await flow(ask)()
        await flow(ask)()
        await flow(ask)()
    assert (len(outer.requests), len(inner.requests)) == (2, 1)


async def test_what_is_open_is_closed_at_the_end_whatever_happens(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    with pytest.raises(KeyError):
        async with open_runtime(Settings(store=store_url(tmp_path)), engine=engine) as runtime:
            raise KeyError
    assert engine.is_closed
    with pytest.raises(EngineClosed):
        await runtime.run(flow(ask))
    with pytest.raises(StoreClosed):
        runtime.store.transaction()


async def test_a_store_that_cannot_be_opened_is_named_before_any_engine_starts(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    with pytest.raises(StoreUnreachable):
        async with open_runtime(Settings(store="mysql://host/x"), engine=engine):
            pass
    assert engine.num_starts == 0
    assert engine.is_closed


async def test_a_flow_without_a_runtime_reads_the_settings_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as that goes without an engine: what is wrong is named, again and again."""
    monkeypatch.setenv("ORCHESTRATE_STORE", store_url(tmp_path))
    monkeypatch.setenv("ORCHESTRATE_POLICY", "no such policy")
    for _ in range(2):
        with pytest.raises(InvalidEngineConfig, match="no such policy"):
            await flow(ask)()
    monkeypatch.delenv("ORCHESTRATE_POLICY")
    monkeypatch.setenv("ORCHESTRATE_STORE", "nowhere")
    with pytest.raises(StoreUnreachable):
        await flow(ask)()


def test_the_embedded_engine_is_the_demo_model_unless_the_settings_say_otherwise() -> None:
    config = engine_config(Settings())
    assert (config.model, config.policy.name) == (DEMO_MODEL, DEFAULT_POLICY)
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
def test_an_engine_setting_out_of_range_is_refused_by_its_name(setting: str, value: object) -> None:
    with pytest.raises(InvalidEngineConfig) as refused:
        engine_config(Settings(**{setting: value}))  # type: ignore[arg-type]
    assert refused.value.args[0] == setting.removesuffix("_params")
