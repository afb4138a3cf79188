"""Runs that are cancelled from outside: recorded as cancelled, with nothing left running."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    DeadlineExceeded,
    Runtime,
    best_so_far,
    flow,
    gather,
    llm,
    step,
    tool,
    within,
)
from orchestrator.durability.outcomes import status_of
from orchestrator.testing import ScriptedEngine
from serving.errors import EngineClosed
from store.records import Status
from store.session import Store
from tests.unit.orchestrator.deadline_samples import DEADLINE_OPTIONS, DeadlineOptions, Elapsed
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    ask,
    recorded,
    scripted_runtime,
    the_run,
    until_generating,
)
from tests.unit.orchestrator.virtual_time import (
    in_virtual_time,
    never,
    run_in_virtual_time,
    timed_runtime,
)


async def test_a_cancelled_run_is_recorded_as_cancelled_and_its_request_is_aborted(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine) as runtime:
        running = asyncio.create_task(runtime.run(flow(ask)))
        await until_generating(engine)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        record = await the_run(runtime.store)
    assert engine.aborted == [engine.requests[0].request_id]
    assert record.run.status is Status.CANCELLED
    assert record.run.error_type == "CancelledError"
    assert record.steps["ask"].status is record.calls[0].status is Status.CANCELLED
    assert record.pattern_records == []


@flow
async def busy() -> None:
    @tool
    def look() -> None: ...

    @tool
    async def wait() -> None:
        await asyncio.sleep(0.001)

    @step
    async def both() -> None:
        await gather(ask(), look(), wait(), llm("x"))

    while True:
        await both()


async def assert_all_ended(store: Store) -> int:
    """Check that all runs are recorded as cancelled; returns their number."""
    async with store.reading() as tx:
        runs = await tx.runs.newest()
    for run in runs:
        record = await recorded(store, run.id)
        assert record.still_running() == []
        assert record.run.status is Status.CANCELLED
    return len(runs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_a_run_that_is_cancelled_at_any_moment_records_all_ends(
    runtime: Runtime, seed: int
) -> None:
    """After some turns of the event loop or some milliseconds, once or several times in a row."""
    moments = random.Random(seed)
    for _ in range(25):
        running = asyncio.create_task(runtime.run(busy))
        for _ in range(moments.choice([0, 1, 2, 5, 20])):
            await asyncio.sleep(0)
        await asyncio.sleep(moments.choice([0, moments.uniform(0, 0.03)]))
        while not running.done():
            running.cancel()
            for _ in range(moments.randint(1, 5)):
                await asyncio.sleep(0)
        assert running.cancelled()
    assert await assert_all_ended(runtime.store) > 0


async def test_a_deadline_that_passes_at_any_moment_leaves_nothing_recorded_as_running(
    runtime: Runtime,
) -> None:
    moments = random.Random(7)
    for _ in range(25):
        with pytest.raises(TimeoutError):
            await runtime.run(busy.options(deadline=moments.uniform(0.0001, 0.02)))
    async with runtime.store.reading() as tx:
        runs = await tx.runs.newest()
    for run in runs:
        record = await recorded(runtime.store, run.id)
        assert record.still_running() == []
        assert (record.run.status, record.run.error_type) == (Status.FAILED, "DeadlineExceeded")


async def test_cancelling_a_run_does_not_affect_other_runs(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=0.01)
    async with scripted_runtime(tmp_path, engine) as runtime:
        cancelled = asyncio.create_task(runtime.run(busy))
        others = [asyncio.create_task(runtime.run(flow(ask))) for _ in range(3)]
        await asyncio.sleep(0.01)
        cancelled.cancel()
        for other in others:
            assert (await other).value == "all is well"
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_a_cancelled_run_begins_no_call_while_it_cleans_up(runtime: Runtime) -> None:
    began = asyncio.Event()

    async def body() -> None:
        try:
            began.set()
            await asyncio.sleep(NEVER_S)
        finally:
            await ask()

    running = asyncio.create_task(runtime.run(flow(body)))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    record = await the_run(runtime.store)
    assert record.run.status is Status.CANCELLED
    assert "ask" not in record.steps


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, Status.COMPLETED),
        (asyncio.CancelledError(), Status.CANCELLED),
        (KeyboardInterrupt(), Status.CANCELLED),
        (SystemExit(1), Status.FAILED),
        (ValueError(), Status.FAILED),
    ],
)
def test_cancellations_and_ctrl_c_are_cancelled_and_all_other_errors_failed(
    error: BaseException | None, status: Status
) -> None:
    assert status_of(error) is status


async def test_closing_the_engine_ends_a_run_with_engine_closed(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine) as runtime:
        running = asyncio.create_task(runtime.run(flow(ask)))
        await until_generating(engine)
        await engine.close()
        with pytest.raises(EngineClosed):
            await running
        record = await the_run(runtime.store)
    assert engine.aborted == []
    assert record.calls[0].error_type == "EngineClosed"


@pytest.mark.parametrize("options", DEADLINE_OPTIONS, ids=["fail", "best_so_far", "wrap_up"])
@pytest.mark.parametrize(
    ("cancelled_at_s", "clean_up_s"),
    [(1, 0), (1, 30), (11, 30)],
    ids=["before", "before, and cleaning up beyond it", "while it cleans up after it"],
)
def test_a_cancellation_from_outside_is_not_taken_for_the_deadline(
    tmp_path: Path, options: DeadlineOptions, cancelled_at_s: float, clean_up_s: float
) -> None:
    """However long the flow takes to end, and although it has a best result so far."""

    started = asyncio.Event()

    @flow(deadline=10, **options)
    async def stubborn() -> str:
        best_so_far("so far")
        started.set()
        try:
            await never()
        finally:
            await asyncio.sleep(clean_up_s)
        return "the end"

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(stubborn))
            await started.wait()
            await asyncio.sleep(cancelled_at_s)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            record = await the_run(runtime.store)
        assert record.run.status is Status.CANCELLED

    run_in_virtual_time(run())


def test_a_cancellation_while_wrapping_up_ends_the_run_as_cancelled(tmp_path: Path) -> None:
    elapsed, wrapping = Elapsed(), asyncio.Event()

    async def slow(so_far: None) -> str:
        wrapping.set()
        return await elapsed()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            body = flow(name="long", deadline=20, wrap_up=slow, tail=10)(Elapsed())
            running = asyncio.create_task(runtime.run(body))
            await wrapping.wait()
            await asyncio.sleep(4)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await the_run(runtime.store)).run.status is Status.CANCELLED
        assert elapsed.seconds == pytest.approx(4)

    run_in_virtual_time(run())


@pytest.mark.parametrize("cancelled_by", ["the deadline", "within", "handle.cancel()"])
@pytest.mark.parametrize("kind", [step, tool, tool(effects="pure")])
@in_virtual_time
async def test_nothing_begins_after_a_cancellation_that_a_step_caught(
    tmp_path: Path, cancelled_by: str, kind: Any
) -> None:
    began: list[str] = []
    has_begun = asyncio.Event()

    @kind
    async def stubborn() -> None:
        began.append("stubborn")
        has_begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(NEVER_S)

    @kind
    async def later() -> None:
        began.append("later")

    async def steps() -> None:
        await stubborn()
        for _ in range(5):
            await later()

    async def body() -> str:
        if cancelled_by == "within":
            async with within(0.5):
                await steps()
        else:
            await steps()
        return "completed"

    deadline = "500ms" if cancelled_by == "the deadline" else "1h"
    async with timed_runtime(tmp_path) as runtime:
        handle = runtime.start(flow(deadline=deadline)(body))
        if cancelled_by == "handle.cancel()":
            await has_begun.wait()
            await handle.cancel()
        expected = asyncio.CancelledError if "handle" in cancelled_by else DeadlineExceeded
        with pytest.raises(expected):
            await handle
        record = await the_run(runtime.store)
    assert began == ["stubborn"]
    status = Status.CANCELLED if "handle" in cancelled_by else Status.FAILED
    assert record.run.status is status


@pytest.mark.parametrize("limited", ["flow", "within", "timeout"])
@in_virtual_time
async def test_code_that_catches_its_deadline_and_returns_is_late_all_the_same(
    tmp_path: Path, limited: str
) -> None:
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(NEVER_S)
        return "completed"

    async def body() -> str:
        match limited:
            case "within":
                async with within(0.05):
                    return await stubborn()
            case "timeout":
                return await step(timeout=0.05)(stubborn)()
        return await stubborn()

    async with timed_runtime(tmp_path) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(flow(deadline="50ms" if limited == "flow" else "1h")(body))
