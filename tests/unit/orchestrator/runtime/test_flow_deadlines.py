"""Deadlines of flows and blocks: what they cut off, and how that is reported and recorded."""

from __future__ import annotations

import asyncio
import itertools
import math
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, gather, has_deadline, llm, remaining, step, within
from orchestrator.errors import DeadlineExceeded, InvalidDuration
from orchestrator.runtime.results import RunResult
from orchestrator.testing import ScriptedEngine, VirtualClock
from store.records import Status
from store.session import open_store
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    ask,
    scripted_runtime,
    store_url,
    the_run,
)
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime


def stalled() -> ScriptedEngine:
    """An engine that never answers."""
    return ScriptedEngine(answer_ok, token_s=NEVER_S)


@in_virtual_time
async def test_a_deadline_that_passes_ends_the_run_and_aborts_its_request(
    tmp_path: Path,
) -> None:
    engine = stalled()
    async with timed_runtime(tmp_path, engine) as runtime:
        with pytest.raises(DeadlineExceeded, match=r"late did not end within its 0\.3 s"):
            await runtime.run(flow(name="late", deadline="300ms")(ask))
        record = await the_run(runtime.store)
    assert engine.aborted == [engine.requests[0].request_id]
    assert engine.num_running == 0
    assert (record.run.status, record.run.error_type) == (Status.FAILED, "DeadlineExceeded")
    assert record.run.error_message == "late did not end within its 0.3 s"
    assert record.steps["ask"].status is Status.CANCELLED
    assert record.calls[0].status is Status.CANCELLED
    assert record.run.elapsed_s is not None
    assert record.run.elapsed_s >= 0.3


@in_virtual_time
async def test_a_deadline_cuts_off_every_branch(tmp_path: Path) -> None:
    engine = stalled()
    async with timed_runtime(tmp_path, engine) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(
                flow(deadline=0.2)(lambda: gather(*(ask() for _ in range(5)))),
            )
        record = await the_run(runtime.store)
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert record.still_running() == []


@pytest.mark.parametrize("order", list(itertools.permutations([0.02, 5, NEVER_S])))
@in_virtual_time
async def test_the_shortest_of_nested_limits_ends_the_block(
    tmp_path: Path, order: tuple[float, ...]
) -> None:
    """In whatever order they are nested; the other limits have no effect."""
    ended: list[tuple[float, float]] = []

    async def nest(limits: tuple[float, ...]) -> None:
        if not limits:
            await ask()
            return
        try:
            async with within(limits[0]):
                assert remaining() <= min(order[: len(order) - len(limits) + 1])
                await nest(limits[1:])
        except DeadlineExceeded as error:
            ended.append((limits[0], error.args[1]))

    async with timed_runtime(tmp_path, stalled()) as runtime:
        await runtime.run(flow(name="nested", deadline="2h")(nest), order)
    assert ended == [(0.02, 0.02)]


@in_virtual_time
async def test_limits_that_pass_at_the_same_time_raise_one_error(
    tmp_path: Path,
) -> None:
    caught: list[str] = []

    async def body() -> None:
        try:
            async with within(0.05), within(0.05):
                await ask()
        except DeadlineExceeded:
            caught.append("outside")

    async with timed_runtime(tmp_path, stalled()) as runtime:
        await runtime.run(flow(name="twice")(body))
    assert caught == ["outside"]


@in_virtual_time
async def test_a_flow_may_continue_after_a_limit_within_it(tmp_path: Path) -> None:
    async def body() -> str:
        try:
            async with within("20ms"):
                await ask("slow")
        except DeadlineExceeded:
            pass
        return await ask("fast")

    engine = ScriptedEngine(answer_ok, token_s=0.05)
    async with timed_runtime(tmp_path, engine) as runtime:
        result = await runtime.run(flow(body))
        record = await the_run(runtime.store)
    assert result.value == answer_ok(engine.requests[-1])
    assert [call.status for call in record.calls] == [Status.CANCELLED, Status.COMPLETED]
    assert record.run.status is Status.COMPLETED
    assert [call.stage for call in record.calls] == [0, 1]
    assert [stage.index for stage in record.pattern.stages] == [0, 1]


async def test_a_limit_in_one_branch_does_not_affect_another(runtime: Runtime) -> None:
    async def limited() -> float:
        async with within("1m"):
            await ask()
            return remaining()

    async def free() -> float:
        await ask()
        return remaining()

    async def body() -> tuple[float, float, float]:
        return *(await gather(limited(), free())), remaining()

    limited_s, free_s, after_s = (await runtime.run(flow(body))).value
    assert limited_s <= 60
    assert free_s == after_s == math.inf


@in_virtual_time
async def test_a_step_that_misses_a_limit_within_it_is_recorded_as_failed(
    tmp_path: Path,
) -> None:
    @step
    async def hurried() -> None:
        async with within("20ms"):
            await llm("x")

    async with timed_runtime(tmp_path, stalled()) as runtime:
        with pytest.raises(DeadlineExceeded, match=r"hurried did not end within its 0\.02 s"):
            await runtime.run(flow(name="f")(hurried))
        record = await the_run(runtime.store)
    assert record.steps["hurried"].error_type == "DeadlineExceeded"
    assert record.calls[0].status is Status.CANCELLED


async def test_a_timeout_error_of_the_user_is_not_taken_for_the_deadline(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        async with within("1h"):
            raise TimeoutError("the user's")

    with pytest.raises(TimeoutError, match="the user's") as raised:
        await runtime.run(flow(deadline="1h")(body))
    assert not isinstance(raised.value, DeadlineExceeded)


async def run_by(
    folder: Path, clock: VirtualClock, body: Callable[[], Awaitable[float]]
) -> RunResult[float]:
    """Run a body under a virtual clock, with a minute's deadline."""
    async with await open_store(store_url(folder)) as store:
        runtime = Runtime(ScriptedEngine(answer_ok), store, clock=clock)
        return await runtime.run(flow(name="timed", deadline=60)(body))


async def test_remaining_decreases_with_the_clock_and_never_below_zero(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    seen: list[float] = []

    async def body() -> float:
        assert has_deadline()
        for _ in range(4):
            seen.append(remaining())
            clock.advance(25)
        return remaining()

    result = await run_by(tmp_path, clock, body)
    assert (seen, result.value) == ([60, 35, 10, 0], 0)
    assert result.elapsed_s == 100
    assert not result.in_time


async def test_a_limit_of_a_share_of_no_remaining_time_raises_deadline_exceeded(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()

    async def body() -> float:
        clock.advance(60)
        async with within(0.5 * remaining()):
            return 1.0

    with pytest.raises(DeadlineExceeded):
        await run_by(tmp_path, clock, body)


async def test_a_limit_that_is_not_a_positive_time_is_refused(runtime: Runtime) -> None:
    async def body() -> None:
        for bad in (0, -1, math.nan, math.inf, "", "soon"):
            with pytest.raises(InvalidDuration):
                async with within(bad):
                    pass

    await runtime.run(flow(body))


async def test_no_call_begins_after_the_deadline(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def body() -> float:
        await ask()
        clock.advance(1000)
        await gather(ask(), ask())
        return 0.0

    with pytest.raises(DeadlineExceeded):
        await run_by(tmp_path, clock, body)


async def test_the_time_of_a_slow_first_write_counts_towards_the_deadline(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine) as runtime:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.3, other.execute, "COMMIT")
            with pytest.raises(DeadlineExceeded):
                await runtime.run(flow(deadline=0.1)(ask))
        record = await the_run(runtime.store)
    assert engine.requests == []
    assert record.still_running() == []


async def test_the_time_in_which_an_engine_starts_does_not_count_towards_the_deadline(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()

    class Late(ScriptedEngine):
        async def start(self) -> None:
            await super().start()
            clock.advance(5)

    async def body() -> float:
        return remaining()

    async with await open_store(store_url(tmp_path)) as store:
        runtime = Runtime(Late(answer_ok), store, clock=clock)
        result = await runtime.run(flow(name="f", deadline=60)(body))
    assert result.value == 60
