"""Runs that are started and not waited for: what their handles tell, and how they are ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    ArgumentsDiffer,
    Flow,
    RunHandle,
    RunNotResumable,
    Runtime,
    Settings,
    flow,
    gather,
)
from orchestrator.events import CallFinished, CallStarted, Event, RunFinished, RunStarted
from orchestrator.testing import ScriptedEngine
from orchestrator.wiring import shared_runtime, unannounced_runtime
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    answer_ok,
    ask,
    law,
    recorded,
    scripted_runtime,
    store_url,
    until_generating,
)

ID = "the-run"


class Gate:
    """A flow that goes on when it is let, and says when it is there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.num_begun = 0

    @property
    def flow(self) -> Flow[[str], str]:
        """Asks once before the gate, and once behind it."""

        async def body(word: str) -> str:
            self.num_begun += 1
            await ask(word)
            self.reached.set()
            await self.opened.wait()
            await ask(word)
            return word.upper()

        return flow(name="gate")(body).options(run_id=ID)


async def all_of(handle: RunHandle[str]) -> list[Event]:
    return [event async for event in handle.events()]


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_a_handle_tells_what_comes_of_its_run(runtime: Runtime) -> None:
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    assert handle.id == ID
    told, stored = [handle.status], [Status.RUNNING]
    await gate.reached.wait()
    told.append(handle.status)
    stored.append((await recorded(runtime.store, ID)).run.status)
    gate.opened.set()
    result = await handle
    assert (result.value, result.run_id) == ("WORD", ID)
    told.append(handle.status)
    stored.append((await recorded(runtime.store, ID)).run.status)
    assert told == stored == [Status.RUNNING, Status.RUNNING, Status.COMPLETED]


async def test_a_run_that_is_given_no_id_gets_one_of_its_own(runtime: Runtime) -> None:
    handles = [runtime.start(flow(ask)) for _ in range(3)]
    results = [await handle for handle in handles]
    assert [result.run_id for result in results] == [handle.id for handle in handles]
    assert len({handle.id for handle in handles}) == 3


async def test_a_handle_gives_the_same_result_as_often_as_it_is_awaited(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    handle = runtime.start(gate.flow, "word")

    async def wait() -> object:
        return await handle

    first, second = await asyncio.gather(wait(), wait())
    assert first is second is await handle
    assert gate.num_begun == 1


async def test_who_waits_for_a_handle_may_be_cancelled_without_its_run(runtime: Runtime) -> None:
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await handle
    assert handle.status is Status.RUNNING
    gate.opened.set()
    assert (await handle).value == "WORD"


async def test_a_run_that_fails_raises_its_error_each_time_it_is_awaited(runtime: Runtime) -> None:
    error = Boom("why")

    async def fails() -> str:
        raise error

    handle = runtime.start(flow(fails))
    for _ in range(2):
        with pytest.raises(Boom) as raised:
            await handle
        assert raised.value is error
    assert handle.status is Status.FAILED
    events = await all_of(handle)
    assert names(events) == ["RunStarted", "RunFinished"]
    assert (await recorded(runtime.store, handle.id)).run.status is Status.FAILED
    await handle.cancel()
    assert handle.status is Status.FAILED


async def test_a_run_is_recorded_as_cancelled_once_cancel_returns(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine) as runtime:
        handle = runtime.start(flow(name="three")(three))
        await until_generating(engine)
        await handle.cancel()
        assert handle.status is Status.CANCELLED
        found = await recorded(runtime.store, handle.id)
        assert found.run.status is Status.CANCELLED
        assert found.still_running() == []
        assert engine.num_running == 0
        await handle.cancel()
        assert (await recorded(runtime.store, handle.id)).run == found.run
        with pytest.raises(asyncio.CancelledError):
            await handle
        assert isinstance((await all_of(handle))[-1], RunFinished)


async def three() -> str:
    return "".join(await gather(ask("a"), ask("b"), ask("c")))


async def test_cancelling_twice_at_once_waits_both_times_until_it_has_ended(
    runtime: Runtime,
) -> None:
    reached, ended = asyncio.Event(), []

    async def slow_to_end() -> str:
        reached.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            try:
                await asyncio.sleep(0.01)
            finally:
                ended.append(True)
        return "the end"

    handle = runtime.start(flow(slow_to_end))
    await reached.wait()
    await asyncio.gather(handle.cancel(), handle.cancel())
    assert ended == [True]
    assert (await recorded(runtime.store, handle.id)).run.status is Status.CANCELLED


async def test_a_run_that_has_ended_is_not_cancelled_any_more(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    handle = runtime.start(gate.flow, "word")
    await handle
    await handle.cancel()
    assert handle.status is Status.COMPLETED
    assert (await handle).value == "WORD"


async def test_a_run_that_is_cancelled_before_it_had_a_turn_leaves_nothing_behind(
    runtime: Runtime,
) -> None:
    """Neither a coroutine that nobody awaits nor a handle that events would go to."""
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    await handle.cancel()
    assert handle.status is Status.CANCELLED
    assert await all_of(handle) == []
    with pytest.raises(asyncio.CancelledError):
        await handle
    gc.collect()
    assert gate.num_begun == 0
    gate.opened.set()
    again = runtime.start(gate.flow, "word")
    assert (await again).value == "WORD"
    assert names(await all_of(handle)) == []
    assert isinstance((await all_of(again))[0], RunStarted)


@settings(law, max_examples=20)
@given(turns=st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_every_reader_sees_every_event_once_and_in_order(turns: list[int]) -> None:
    """Whenever it begins to read, and however long it takes over each event."""

    async def read(handle: RunHandle[str], first: int) -> list[Event]:
        seen = []
        for _ in range(turns[first % len(turns)]):
            await asyncio.sleep(0)
        async for event in handle.events():
            seen.append(event)
            for _ in range(turns[(first + len(seen)) % len(turns)]):
                await asyncio.sleep(0)
        return seen

    async def run() -> None:
        told: list[Event] = []
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder), on_event=told.append) as runtime:
                handle = runtime.start(flow(name="three")(three))
                early = asyncio.gather(*(read(handle, first) for first in range(3)))
                await handle
                late = await read(handle, 0)
                assert [*await early, late] == [told] * 4
        assert isinstance(told[0], RunStarted)
        assert isinstance(told[-1], RunFinished)
        assert sum(isinstance(event, CallStarted) for event in told) == 3
        assert sum(isinstance(event, CallFinished) for event in told) == 3

    asyncio.run(run())


async def test_events_come_while_the_run_goes_on(runtime: Runtime) -> None:
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    seen: list[Event] = []
    async for event in handle.events():
        seen.append(event)
        if isinstance(event, CallFinished) and not gate.opened.is_set():
            assert handle.status is Status.RUNNING
            gate.opened.set()
    assert names(seen).count("CallFinished") == 2
    assert handle.status is Status.COMPLETED


async def test_handles_are_told_of_their_own_runs_only(runtime: Runtime) -> None:
    handles = [runtime.start(flow(name=f"three-{number}")(three)) for number in range(3)]
    for handle in handles:
        await handle
        assert {event.run_id for event in await all_of(handle)} == {handle.id}


async def test_a_start_of_a_run_that_has_ended_gives_its_result_and_does_nothing(
    runtime: Runtime,
) -> None:
    gate = Gate()
    gate.opened.set()
    results = [await runtime.start(gate.flow, "word") for _ in range(3)]
    assert [result.value for result in results] == ["WORD"] * 3
    assert gate.num_begun == 1
    assert (await recorded(runtime.store, ID)).run.attempts == 1


async def test_a_start_of_a_run_that_was_cancelled_goes_on_with_it(runtime: Runtime) -> None:
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    await gate.reached.wait()
    await handle.cancel()
    gate.opened.set()
    again = runtime.start(gate.flow, "word")
    assert (await again).value == "WORD"
    assert again.status is Status.COMPLETED
    assert isinstance(runtime.engine, ScriptedEngine)
    assert len(runtime.engine.requests) == 2
    assert names(await all_of(again)).count("CallStarted") == 1


@pytest.mark.parametrize("when", ["at once", "while it runs", "once it has ended"])
async def test_a_second_start_with_other_arguments_is_refused_by_name(
    runtime: Runtime, when: str
) -> None:
    gate = Gate()
    first = runtime.start(gate.flow, "word")
    if when != "at once":
        await gate.reached.wait()
    if when == "once it has ended":
        gate.opened.set()
        await first
    second = runtime.start(gate.flow, "another")
    with pytest.raises(ArgumentsDiffer, match=ID):
        await second
    assert second.status is Status.FAILED
    gate.opened.set()
    assert (await first).value == "WORD"
    assert gate.num_begun == 1


@pytest.mark.parametrize("when", ["at once", "while it runs"])
async def test_a_second_start_of_a_run_at_work_is_refused_and_takes_nothing_from_the_first(
    runtime: Runtime, when: str
) -> None:
    gate = Gate()
    first = runtime.start(gate.flow, "word")
    if when != "at once":
        await gate.reached.wait()
    second = runtime.start(gate.flow, "word")
    with pytest.raises(RunNotResumable, match="is executing it"):
        await second
    assert await all_of(second) == []
    gate.opened.set()
    assert (await first).value == "WORD"
    assert gate.num_begun == 1
    events = await all_of(first)
    assert isinstance(events[-1], RunFinished)
    assert names(events).count("CallFinished") == 2


async def test_a_second_start_of_another_flow_is_refused_by_name(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    await runtime.start(gate.flow, "word")

    async def other(word: str) -> str:
        return word

    with pytest.raises(RunNotResumable, match="not of other"):
        await runtime.start(flow(other).options(run_id=ID), "word")


async def test_a_flow_starts_and_resumes_itself_in_the_runtime_that_is_open(
    runtime: Runtime,
) -> None:
    @flow(name="counting")
    async def count(number: int) -> int:
        return number + 1

    handle = await count.options(run_id=ID).start(1)
    assert (await handle).value == 2
    assert (await count.resume(ID)).value == 2
    assert (await count.run(5)).value == 6
    async with runtime.store.reading() as tx:
        assert len(await tx.runs.newest()) == 2


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_runtime_that_was_opened_for_a_handle_is_closed_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    open_runtimes: list[Runtime] = []

    @asynccontextmanager
    async def opener() -> AsyncIterator[Runtime]:
        settings = Settings(store=store_url(tmp_path), fit_every=0)
        async with unannounced_runtime(settings, engine=ScriptedEngine(answer_ok)) as opened:
            open_runtimes.append(opened)
            yield opened
            open_runtimes.remove(opened)

    monkeypatch.setattr("orchestrator.sdk.flow.shared_runtime", partial(shared_runtime, opener))
    handle = await flow(ask).start()
    assert len(open_runtimes) == 1
    if cancelled:
        await handle.cancel()
    else:
        assert (await handle).value == "all is well"
    assert open_runtimes == []
