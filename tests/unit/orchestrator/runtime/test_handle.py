"""Handles of runs in the background: status, result, events, cancellation, second starts."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    ArgumentsDiffer,
    Flow,
    RunCancelled,
    RunHandle,
    RunNotResumable,
    Runtime,
    WrongLoop,
    flow,
    gather,
)
from orchestrator.events import CallFinished, CallStarted, Event, RunFinished, RunStarted
from orchestrator.testing import ScriptedEngine
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    answer_ok,
    ask,
    law,
    recorded,
    scripted_runtime,
    until_generating,
)

ID = "the-run"


class Gate:
    """A flow that signals when it has reached the gate, and waits there until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.num_started = 0

    @property
    def flow(self) -> Flow[[str], str]:
        """Makes one call before the gate, and one after it."""

        async def body(word: str) -> str:
            self.num_started += 1
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


async def test_a_handle_has_the_recorded_status_and_the_result_of_its_run(runtime: Runtime) -> None:
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    assert handle.id == ID
    seen, stored = [handle.status], [Status.RUNNING]
    await gate.reached.wait()
    seen.append(handle.status)
    stored.append((await recorded(runtime.store, ID)).run.status)
    gate.opened.set()
    result = await handle
    assert (result.value, result.run_id) == ("WORD", ID)
    seen.append(handle.status)
    stored.append((await recorded(runtime.store, ID)).run.status)
    assert seen == stored == [Status.RUNNING, Status.RUNNING, Status.COMPLETED]


async def test_runs_without_a_given_id_get_different_ids(runtime: Runtime) -> None:
    handles = [runtime.start(flow(ask)) for _ in range(3)]
    results = [await handle for handle in handles]
    assert [result.run_id for result in results] == [handle.id for handle in handles]
    assert len({handle.id for handle in handles}) == 3


async def test_a_handle_returns_the_same_result_each_time_it_is_awaited(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    handle = runtime.start(gate.flow, "word")

    async def wait() -> object:
        return await handle

    first, second = await asyncio.gather(wait(), wait())
    assert first is second is await handle
    assert gate.num_started == 1


async def test_cancelling_a_task_that_awaits_a_handle_does_not_cancel_the_run(
    runtime: Runtime,
) -> None:
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
        record = await recorded(runtime.store, handle.id)
        assert record.run.status is Status.CANCELLED
        assert record.still_running() == []
        assert engine.num_running == 0
        await handle.cancel()
        assert (await recorded(runtime.store, handle.id)).run == record.run
        with pytest.raises(asyncio.CancelledError):
            await handle
        assert isinstance((await all_of(handle))[-1], RunFinished)


async def three() -> str:
    return "".join(await gather(ask("a"), ask("b"), ask("c")))


async def test_two_concurrent_cancels_both_wait_until_the_run_has_ended(
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


async def test_cancelling_a_completed_run_has_no_effect(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    handle = runtime.start(gate.flow, "word")
    await handle
    await handle.cancel()
    assert handle.status is Status.COMPLETED
    assert (await handle).value == "WORD"


async def test_a_run_that_is_cancelled_before_its_first_turn_leaves_nothing_behind(
    runtime: Runtime,
) -> None:
    """Neither an unawaited coroutine nor a handle that gets the events of the next start."""
    gate = Gate()
    handle = runtime.start(gate.flow, "word")
    await handle.cancel()
    assert handle.status is Status.CANCELLED
    assert await all_of(handle) == []
    with pytest.raises(asyncio.CancelledError):
        await handle
    gc.collect()
    assert gate.num_started == 0
    gate.opened.set()
    again = runtime.start(gate.flow, "word")
    assert (await again).value == "WORD"
    assert names(await all_of(handle)) == []
    assert isinstance((await all_of(again))[0], RunStarted)


@settings(law, max_examples=examples(20))
@given(turns=st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_every_reader_gets_every_event_once_and_in_order(turns: list[int]) -> None:
    """Whenever it begins to read, and however long it takes for each event."""

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
        emitted: list[Event] = []
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder), on_event=emitted.append) as runtime:
                handle = runtime.start(flow(name="three")(three))
                early = asyncio.gather(*(read(handle, first) for first in range(3)))
                await handle
                late = await read(handle, 0)
                assert [*await early, late] == [emitted] * 4
        assert isinstance(emitted[0], RunStarted)
        assert isinstance(emitted[-1], RunFinished)
        assert sum(isinstance(event, CallStarted) for event in emitted) == 3
        assert sum(isinstance(event, CallFinished) for event in emitted) == 3

    asyncio.run(run())


async def test_events_can_be_read_while_the_run_executes(runtime: Runtime) -> None:
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


async def test_a_handle_has_the_events_of_its_own_run_only(runtime: Runtime) -> None:
    handles = [runtime.start(flow(name=f"three-{number}")(three)) for number in range(3)]
    for handle in handles:
        await handle
        assert {event.run_id for event in await all_of(handle)} == {handle.id}


async def test_starting_a_completed_run_returns_its_recorded_result(
    runtime: Runtime,
) -> None:
    gate = Gate()
    gate.opened.set()
    results = [await runtime.start(gate.flow, "word") for _ in range(3)]
    assert [result.value for result in results] == ["WORD"] * 3
    assert gate.num_started == 1
    assert (await recorded(runtime.store, ID)).run.attempts == 1


async def test_starting_a_cancelled_run_resumes_it(runtime: Runtime) -> None:
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
async def test_a_second_start_with_other_arguments_is_refused_with_arguments_differ(
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
    assert gate.num_started == 1


@pytest.mark.parametrize("when", ["at once", "while it runs"])
async def test_a_second_start_of_an_executing_run_is_refused_and_does_not_affect_the_first(
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
    assert gate.num_started == 1
    events = await all_of(first)
    assert isinstance(events[-1], RunFinished)
    assert names(events).count("CallFinished") == 2


async def test_a_second_start_of_another_flow_is_refused(runtime: Runtime) -> None:
    gate = Gate()
    gate.opened.set()
    await runtime.start(gate.flow, "word")

    async def other(word: str) -> str:
        return word

    with pytest.raises(RunNotResumable, match="not of other"):
        await runtime.start(flow(other).options(run_id=ID), "word")


async def test_a_flow_starts_and_resumes_in_the_open_runtime(
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


async def test_a_failure_that_nobody_awaits_is_reported_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def failing() -> None:
        raise Boom("the reason")

    async def start_and_forget(runtime: Runtime) -> None:
        runtime.start(failing.options(run_id="forgotten"))
        while not (await runtime.runs(status="failed")):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        async with scripted_runtime(tmp_path) as runtime:
            await start_and_forget(runtime)
            handle = runtime.start(failing)
            with pytest.raises(Boom):
                await handle
            del handle
        gc.collect()
    assert [record.getMessage() for record in caplog.records] == [
        "run forgotten failed: Boom: the reason"
    ]


async def test_a_run_is_cancelled_while_it_is_beginning(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:

        @flow
        async def endless() -> None:
            await asyncio.sleep(NEVER_S)

        handle = runtime.start(endless)
        assert (await runtime.cancel(handle.id)).status == "cancelled"
        with pytest.raises(RunCancelled):
            await handle


async def test_a_handle_read_on_another_event_loop_says_so(tmp_path: Path) -> None:
    @flow
    async def short() -> None:
        await asyncio.sleep(0.05)

    async with scripted_runtime(tmp_path) as runtime:
        handle = runtime.start(short)

        async def read() -> list[str]:
            return [piece async for piece in handle.text()]

        with pytest.raises(WrongLoop):
            await asyncio.to_thread(lambda: asyncio.run(read()))
        await handle
