"""A runtime that shuts down ends what ends in time, and hands over the rest without a loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    ArgumentsDiffer,
    InvalidDuration,
    OutcomeUnknown,
    RunHandle,
    RunInterrupted,
    RunNotResumable,
    Runtime,
    RuntimeDraining,
    flow,
    input_required,
    step,
    tool,
)
from orchestrator.durability.leases import LEASE_S
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import recorded
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.sdk.human_input_samples import questions_of
from tests.unit.orchestrator.virtual_time import run_in_virtual_time, timed_runtime

done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@step
async def part(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    done.append(name)
    return name


@tool(effects="external")
async def send(name: str) -> str:
    done.append(name)
    await asyncio.sleep(10)
    return name


@flow
async def two_parts() -> list[str]:
    return [await part("first", 1), await part("second", 600)]


@flow
async def stubborn() -> str:
    try:
        return await part("long", 100)
    except BaseException:
        return await part("after", 0)


@flow
async def question() -> str:
    return await input_required("which?")


@flow
async def sends() -> str:
    return await send("letter")


async def begun(runtime: Runtime, body: Any, run_id: str = ID) -> RunHandle[Any]:
    handle: RunHandle[Any] = runtime.start(body.options(run_id=run_id))
    await handle.begun()
    return handle


def test_runs_that_end_in_time_end_and_the_others_continue_in_the_next_runtime(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            short = await begun(runtime, part_as_flow, "short")
            long = await begun(runtime, two_parts)
            assert await runtime.drain("60s") == [ID]
            assert (await short).value == "only"
            with pytest.raises(RunInterrupted, match=f"orchestrate resume {ID}"):
                await long
            assert long.status is Status.RUNNING
            assert (await recorded(runtime.store, ID)).run.status is Status.RUNNING
            assert (await runtime.get(ID)).status == "orphaned"
        before = sorted(done)  # reading what was learned takes a thread, and so some virtual time
        assert before == ["first", "only"]
        async with timed_runtime(tmp_path) as runtime:
            [handle] = await runtime.resume_orphans(two_parts)
            assert (await handle).value == ["first", "second"]
            assert await runtime.resume_orphans() == []
        assert sorted(done) == [*before, "second"]

    run_in_virtual_time(work())


@flow
async def part_as_flow() -> str:
    return await part("only", 2)


def test_a_run_that_catches_its_interruption_records_nothing_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            handle = await begun(runtime, stubborn)
            await asyncio.sleep(1)
            assert await runtime.drain(1) == [ID]
            with pytest.raises(RunInterrupted):
                await handle
            assert done == []
            journal = (await recorded(runtime.store, ID)).journal
            assert [record.status for record in journal.values()] == [Status.RUNNING]

    run_in_virtual_time(work())


def test_nothing_begins_in_a_runtime_that_is_drained(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            assert await runtime.drain() == []
            with pytest.raises(RuntimeDraining):
                await runtime.run(two_parts.options(run_id=ID))
            handle = runtime.start(two_parts)
            with pytest.raises(RuntimeDraining):
                await handle.begun()
            assert await runtime.runs() == []

    run_in_virtual_time(work())


def test_a_run_that_waits_for_a_person_is_handed_over_with_its_question(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, question)
            await questions_of(runtime.store)
            assert await runtime.drain(1) == [ID]
            await runtime.answer(ID, "this one")
        async with timed_runtime(tmp_path) as runtime:
            [handle] = await runtime.resume_orphans(question)
            assert (await handle).value == "this one"

    run_in_virtual_time(work())


def test_an_external_effect_that_is_cut_off_is_unknown_as_after_a_death(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, sends)
            await asyncio.sleep(1)
            await runtime.drain(1)
        async with timed_runtime(tmp_path) as runtime:
            [handle] = await runtime.resume_orphans(sends)
            with pytest.raises(OutcomeUnknown):
                await handle
        assert done == ["letter"]

    run_in_virtual_time(work())


@flow
async def parent() -> str:
    handle = await part_as_flow.options(run_id="child").start()
    return (await handle).value


@flow
async def unwilling() -> str:
    for _ in range(3):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            done.append("caught")
    return "never"


def test_a_run_in_progress_may_begin_another_one_that_ends_in_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            handle = runtime.start(later)
            await handle.begun()
            assert await runtime.drain("1h") == []
            assert (await handle).value == "only"

    @flow
    async def later() -> str:
        await asyncio.sleep(1)
        return await parent.body()

    run_in_virtual_time(work())


def test_a_child_that_does_not_end_in_time_is_handed_over_with_its_parent(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, parent)
            await asyncio.sleep(0.1)
            assert sorted(await runtime.drain(1)) == ["child", ID]
            assert {run.status for run in await runtime.runs()} == {"orphaned"}

    run_in_virtual_time(work())


def test_a_run_that_was_begun_twice_under_one_id_is_handed_over(tmp_path: Path) -> None:
    """Only one of the two is executed; the other says why not, and changes nothing."""

    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            handles = [runtime.start(two_parts.options(run_id=ID)) for _ in range(2)]
            ends = await asyncio.gather(
                *(handle.begun() for handle in handles), return_exceptions=True
            )
            assert sorted(type(end).__name__ for end in ends) == ["NoneType", "RunNotResumable"]
            [executed] = [handle for handle, end in zip(handles, ends, strict=True) if end is None]
            assert executed.log is not None
            assert await runtime.drain("60s") == [ID]
            assert (await runtime.get(ID)).status == "orphaned"
        assert done == ["first"]

    run_in_virtual_time(work())


def test_a_run_that_catches_its_interruption_is_interrupted_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, unwilling)
            began_s = asyncio.get_running_loop().time()
            assert await runtime.drain(0.5) == [ID]
            assert asyncio.get_running_loop().time() - began_s < 5
        assert done == ["caught"] * 3

    run_in_virtual_time(work())


def test_a_process_in_another_container_may_resume_at_once(tmp_path: Path) -> None:
    """It cannot see the process, but it sees that the lease has ended."""

    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, two_parts)
            leased = (await recorded(runtime.store, ID)).run.leased_until
            await runtime.drain(0.5)
            ended = (await recorded(runtime.store, ID)).run.leased_until
            assert leased is not None
            assert ended is not None
            assert (leased - ended).total_seconds() == pytest.approx(LEASE_S - 0.5, abs=0.01)

    run_in_virtual_time(work())


def test_two_processes_that_resume_at_once_do_not_execute_a_run_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, two_parts)
            await runtime.drain(0.5)
        async with timed_runtime(tmp_path) as one, timed_runtime(tmp_path) as other:
            both = await one.resume_orphans(two_parts), await other.resume_orphans(two_parts)
            handles = [handle for handles in both for handle in handles]
            ends = await asyncio.gather(*handles, return_exceptions=True)
        assert len(handles) == 2
        assert sorted(type(end).__name__ for end in ends) == ["RunNotResumable", "RunResult"]
        assert any(isinstance(end, RunNotResumable) for end in ends)
        assert done == ["first", "second"]

    run_in_virtual_time(work())


def test_a_cancelled_orphan_and_runs_of_other_flows_are_left_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await begun(runtime, two_parts)
            await begun(runtime, question, "asks")
            await runtime.drain(0.5)
        async with timed_runtime(tmp_path) as runtime:
            assert [handle.id for handle in await runtime.resume_orphans(question)] == ["asks"]

    run_in_virtual_time(work())


@flow
async def echo(text: str) -> str:
    return text


def test_a_run_that_never_began_says_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await runtime.run(echo.options(run_id=ID), "one")
            handle = runtime.start(echo.options(run_id=ID), "another")
            with pytest.raises(ArgumentsDiffer):
                await handle.begun()

    run_in_virtual_time(work())


@pytest.mark.parametrize("timeout", ["soon", -1, float("nan")])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_stopped(
    tmp_path: Path, timeout: Any
) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(InvalidDuration):
                await runtime.drain(timeout)
            assert (await runtime.run(part_as_flow)).value == "only"

    run_in_virtual_time(work())


def test_without_time_to_wait_all_runs_are_handed_over_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with timed_runtime(tmp_path) as runtime:
            handle = await begun(runtime, part_as_flow)
            assert await runtime.drain(0) == [ID]
            with pytest.raises(RunInterrupted):
                await handle

    run_in_virtual_time(work())
