"""Flows awaited without an open runtime: their engine and store stay open until the loop ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import RunHandle, Settings, flow, open_runtime
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.kept_runtime import opened_loop, shared_runtime
from orchestrator.testing import ScriptedEngine
from serving.errors import ModelNotLoaded
from store.errors import StoreUnreachable
from store.records import Status
from store.session import open_store
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Recorded,
    all_runs,
    answer_ok,
    ask,
    store_url,
    until_generating,
)

short = flow(name="short")(ask)


class EngineOfProcess(ScriptedEngine):
    """A scripted engine that may have to make way, like vLLM in this process."""

    def __init__(self, token_s: float = 0.0) -> None:
        super().__init__(answer_ok, token_s=token_s)
        self.may_be_closed = lambda: False
        self.has_died = False

    @property
    def has_ended(self) -> bool:
        return self.is_closed or self.has_died


class Engines:
    """The engines that settings were turned into, in their order."""

    def __init__(self) -> None:
        self.made: list[EngineOfProcess] = []
        self.failures: list[Exception] = []
        self.token_s = 0.0

    def engine_of(self, settings: Settings) -> EngineOfProcess:
        if self.failures:
            raise self.failures.pop()
        self.made.append(EngineOfProcess(self.token_s))
        return self.made[-1]

    @property
    def are_closed(self) -> list[bool]:
        return [engine.is_closed for engine in self.made]

    @property
    def num_requests(self) -> list[int]:
        return [len(engine.requests) for engine in self.made]


@pytest.fixture
def engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Engines]:
    """What a bare await finds in the environment: a store in a file, and scripted engines.

    A test at whose end asyncio has logged an error fails: the end of a loop raises none.
    """
    made = Engines()
    monkeypatch.setenv("ORCHESTRATE_STORE", store_url(tmp_path))
    monkeypatch.setenv("ORCHESTRATE_FIT_EVERY", "0")
    monkeypatch.setattr("orchestrator.wiring.engine_of", made.engine_of)
    yield made
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def read_runs(folder: Path) -> list[Recorded]:
    async with await open_store(store_url(folder)) as store:
        return await all_runs(store)


def runs_of(folder: Path) -> list[Recorded]:
    """All runs in the store, as the next process finds them."""
    return asyncio.run(read_runs(folder))


def run_and_close(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """As programs did before asyncio.run: nothing is shut down but the loop itself."""
    loop.run_until_complete(work)
    loop.close()


def test_sequential_and_concurrent_flows_share_an_engine_until_the_loop_ends(
    engines: Engines,
) -> None:
    async def main() -> None:
        await short()
        await asyncio.gather(*(short() for _ in range(10)))
        await short.run()
        await (await short.start())
        assert engines.are_closed == [False]
        assert opened_loop() is asyncio.get_running_loop()

    asyncio.run(main())
    assert engines.are_closed == [True]
    assert engines.num_requests == [13]


def test_each_loop_keeps_a_runtime_of_its_own(engines: Engines) -> None:
    for _ in range(3):
        asyncio.run(short())
    assert engines.are_closed == [True] * 3
    assert engines.num_requests == [1] * 3


def test_a_chat_model_outside_of_runs_uses_the_kept_runtime(engines: Engines) -> None:
    async def main() -> None:
        await short()
        assert (await ChatOrchestrate().ainvoke("hello")).content == "all is well"

    asyncio.run(main())
    assert engines.num_requests == [2]


def test_an_open_runtime_is_used_instead_of_the_kept_one(engines: Engines, tmp_path: Path) -> None:
    async def main() -> None:
        await short()
        settings, engine = Settings(store=store_url(tmp_path)), ScriptedEngine(answer_ok)
        async with open_runtime(settings, engine=engine):
            await short()
            assert len(engine.requests) == 1
        await short()

    asyncio.run(main())
    assert engines.num_requests == [2]


def test_the_end_of_a_run_in_the_background_is_recorded_when_the_loop_ends(
    engines: Engines, tmp_path: Path
) -> None:
    engines.token_s = NEVER_S
    handles: list[RunHandle[str]] = []

    async def main() -> None:
        handles.extend([await short.start(), await short.start()])
        await until_generating(engines.made[0])

    asyncio.run(main())
    assert [handle.status for handle in handles] == [Status.CANCELLED] * 2
    records = runs_of(tmp_path)
    assert [record.run.status for record in records] == [Status.CANCELLED] * 2
    assert [record.still_running() for record in records] == [[]] * 2
    assert engines.are_closed == [True]
    assert len(engines.made[0].aborted) >= 1


@pytest.mark.parametrize("error", [Exception, SystemExit, KeyboardInterrupt])
def test_an_error_that_ends_the_program_closes_the_runtime(
    engines: Engines, tmp_path: Path, error: type[BaseException]
) -> None:
    async def main() -> None:
        await short()
        raise error

    with pytest.raises(error):
        asyncio.run(main())
    assert engines.are_closed == [True]


def test_a_runner_keeps_the_runtime_between_its_runs(engines: Engines) -> None:
    with asyncio.Runner() as runner:
        for _ in range(3):
            runner.run(short())
        assert engines.are_closed == [False]
    assert engines.are_closed == [True]
    assert engines.num_requests == [3]


def test_loops_that_are_just_closed_are_forgotten_and_their_engines_make_way(
    engines: Engines,
) -> None:
    for _ in range(3):
        run_and_close(asyncio.new_event_loop(), short())
    assert engines.num_requests == [1] * 3
    assert [engine.may_be_closed() for engine in engines.made] == [True] * 3
    asyncio.run(short())


def test_other_settings_open_another_runtime_and_the_idle_one_is_closed(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await short()
        monkeypatch.setenv("ORCHESTRATE_SLOTS", "3")
        await short()
        assert engines.are_closed == [True, False]
        await short()

    asyncio.run(main())
    assert engines.num_requests == [1, 2]


def test_a_relative_store_is_another_one_in_another_folder(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_STORE", "sqlite:///store.db")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    async def main() -> None:
        for folder in "aab":
            monkeypatch.chdir(tmp_path / folder)
            await short()

    asyncio.run(main())
    assert engines.num_requests == [2, 1]
    assert [len(runs_of(tmp_path / folder)) for folder in "ab"] == [2, 1]


def test_a_runtime_with_former_settings_stays_open_while_a_run_uses_it(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.token_s = 0.02

    async def main() -> None:
        handle = await short.start()
        await until_generating(engines.made[0])
        monkeypatch.setenv("ORCHESTRATE_SLOTS", "3")
        engines.token_s = 0.0
        await short()
        assert engines.are_closed == [False, False]
        assert (await handle).value == "all is well"
        monkeypatch.setenv("ORCHESTRATE_SLOTS", "4")
        await short()
        assert engines.are_closed == [True, True, False]

    asyncio.run(main())
    assert engines.are_closed == [True] * 3


def test_an_engine_may_be_closed_only_while_no_run_uses_it(engines: Engines) -> None:
    engines.token_s = 0.02

    async def main() -> None:
        handle = await short.start()
        [engine] = engines.made
        await until_generating(engine)
        assert not engine.may_be_closed()
        await short()
        await handle
        answers = [await asyncio.to_thread(engine.may_be_closed) for _ in range(2)]
        assert answers == [True, True]
        assert opened_loop() is None
        await short()
        assert engines.are_closed == [True, False]

    asyncio.run(main())
    assert engines.num_requests == [2, 1]


def test_an_engine_that_has_died_is_replaced(engines: Engines) -> None:
    async def main() -> None:
        await short()
        engines.made[0].has_died = True
        await short()

    asyncio.run(main())
    assert engines.num_requests == [1, 1]
    assert engines.are_closed == [True, True]


def test_after_a_failed_start_the_next_flow_can_start(engines: Engines) -> None:
    engines.failures = [ModelNotLoaded("m", "no room") for _ in range(2)]

    async def main() -> list[object]:
        return list(await asyncio.gather(*(short() for _ in range(5)), return_exceptions=True))

    answers = asyncio.run(main())
    assert [type(answer) for answer in answers[:2]] == [ModelNotLoaded] * 2
    assert answers[2:] == ["all is well"] * 3
    assert engines.are_closed == [True]


def test_a_store_that_cannot_be_opened_leaves_nothing_open(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_STORE", "sqlite:////proc/nowhere/x.db")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(StoreUnreachable):
                await short()
        assert opened_loop() is None

    asyncio.run(main())
    assert engines.are_closed == [True, True]


def test_a_cancelled_flow_leaves_the_runtime_open_for_the_others(engines: Engines) -> None:
    engines.token_s = 0.01

    async def main() -> None:
        first = asyncio.create_task(short())
        others = [asyncio.create_task(short()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        for other in others:
            assert await other == "all is well"
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())
    assert all(engines.are_closed)


def test_loops_of_several_threads_keep_runtimes_side_by_side(engines: Engines) -> None:
    barrier = threading.Barrier(3)
    errors: list[BaseException] = []

    async def main() -> None:
        for _ in range(3):
            await short()
        await asyncio.to_thread(barrier.wait, 60)
        await short()

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engines.num_requests == [4] * 3
    assert engines.are_closed == [True] * 3


def test_a_flow_that_an_async_generator_awaits_when_the_loop_ends_does_not_hang(
    engines: Engines, tmp_path: Path
) -> None:
    """The generator and the kept runtime are closed at the same time."""
    generators: list[AsyncGenerator[int, None]] = []

    async def counts() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await short()

    async def main() -> None:
        generators.append(counts())
        await anext(generators[0])
        await short()

    loop = asyncio.new_event_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert engines.made[0].is_closed
    assert {record.run.status for record in runs_of(tmp_path)} <= {
        Status.COMPLETED,
        Status.FAILED,
    }


async def test_no_loop_is_open_before_the_first_flow() -> None:
    assert opened_loop() is None


async def test_within_a_block_of_open_runtime_its_runtime_is_shared(tmp_path: Path) -> None:
    settings = Settings(store=store_url(tmp_path))
    async with (
        open_runtime(settings, engine=ScriptedEngine(answer_ok)) as runtime,
        shared_runtime() as shared,
    ):
        assert shared is runtime
        assert opened_loop() is asyncio.get_running_loop()


def test_telemetry_is_closed_after_the_runtime_that_it_observes(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it an async generator, the loop would close it at the same time."""
    monkeypatch.setenv("ORCHESTRATE_TELEMETRY", "1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    asyncio.run(short())
    assert engines.are_closed == [True]
