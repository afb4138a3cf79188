"""Waits that a cancellation does not cut short, and groups of tasks in which one fails."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.cancellation import first_failure, run_to_completion, until_ended
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, Boom


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("times", [1, 2, 7])
async def test_work_completes_however_often_the_waiting_task_is_cancelled(times: int) -> None:
    gate, done = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        done.append(True)

    waiter = asyncio.create_task(run_to_completion(work()))
    for _ in range(times):
        await turns()
        waiter.cancel()
    await turns()
    assert not waiter.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert done == [True]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_error_of_the_work_is_raised_in_place_of_a_cancellation(cancelled: bool) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        raise Boom

    waiter = asyncio.create_task(run_to_completion(work()))
    await turns()
    if cancelled:
        waiter.cancel()
    gate.set()
    with pytest.raises(Boom):
        await waiter


async def test_a_timeout_around_a_wait_is_raised_once_the_wait_ends() -> None:
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, gate.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await run_to_completion(wait_for(gate))


async def wait_for(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_waiting_for_ended_tasks_takes_no_turn_of_the_event_loop() -> None:
    done = asyncio.create_task(turns(1))
    await done
    for waiting in (until_ended([]), until_ended([done]), first_failure([])):
        with pytest.raises(StopIteration):
            waiting.send(None)


async def test_the_first_failure_in_time_is_returned_and_the_other_tasks_are_cancelled() -> None:
    async def fails(after: int, error: Exception) -> None:
        await turns(after)
        raise error

    first, second = Boom("first"), Boom("second")
    tasks = [
        asyncio.create_task(work)
        for work in (asyncio.sleep(NEVER_S), fails(9, second), fails(2, first))
    ]
    assert await first_failure(tasks) is first
    assert [task.cancelled() for task in tasks] == [True, True, False]


async def test_a_failure_does_not_change_the_tasks_count_of_cancellations() -> None:
    """Otherwise every timeout around it would raise CancelledError; see asyncio.Task.uncancel."""
    current = asyncio.current_task()
    assert current is not None

    async def fails() -> None:
        raise Boom

    tasks = [asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(NEVER_S))]
    assert isinstance(await first_failure(tasks), Boom)
    assert current.cancelling() == 0
