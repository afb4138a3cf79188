"""Branches side by side: their results, their failures, and what becomes of the others."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable, Generator

import pytest

from orchestrator import Runtime, flow, gather, llm
from orchestrator.errors import DeadlineExceeded, OutsideRun
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, Boom, ask, recorded, the_run


class Interrupt(BaseException):
    """As a KeyboardInterrupt, which would end the test session itself."""


async def later(value: int, turns: int = 3) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def never() -> None:
    await asyncio.sleep(NEVER_S)


async def fails(error: BaseException) -> None:
    raise error


async def value_of(runtime: Runtime, body: Callable[[], Awaitable[object]]) -> object:
    """What a body returns when it runs as a flow."""
    return (await runtime.run(flow(name="test")(body))).value


async def test_results_come_in_the_order_given_whoever_is_faster(runtime: Runtime) -> None:
    async def body() -> object:
        return await gather(later(1, 9), later(2, 0), later(3, 4))

    assert await value_of(runtime, body) == (1, 2, 3)


async def test_a_gather_of_nothing_is_an_empty_tuple(runtime: Runtime) -> None:
    async def body() -> object:
        await ask()
        result: tuple[object, ...] = await gather()
        await ask()
        return result

    assert await value_of(runtime, body) == ()
    assert (await the_run(runtime.store)).edges == {(0, 1)}


async def test_anything_that_can_be_awaited_may_be_a_branch(runtime: Runtime) -> None:
    class Custom:
        def __await__(self) -> Generator[None, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 3

    async def body() -> object:
        future = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return await gather(future, asyncio.create_task(later(2)), Custom(), later(4))

    assert await value_of(runtime, body) == (1, 2, 3, 4)


async def test_a_failure_cancels_the_others_and_is_raised_once_they_have_ended(
    runtime: Runtime,
) -> None:
    ended = []

    async def waits() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(0.001)
            ended.append(True)

    async def body() -> None:
        await gather(waits(), later_failure(), waits())

    async def later_failure() -> None:
        await asyncio.sleep(0.001)
        raise Boom

    with pytest.raises(Boom):
        await value_of(runtime, body)
    assert ended == [True, True]


async def test_the_error_is_raised_as_it_is_with_its_cause_and_notes(runtime: Runtime) -> None:
    cause = KeyError("why")
    error = Boom("what")
    error.__cause__ = cause
    error.add_note("and this")
    with pytest.raises(Boom) as raised:
        await value_of(runtime, lambda: gather(later(1), fails(error)))
    assert raised.value is error
    assert raised.value.__cause__ is cause
    assert raised.value.__notes__ == ["and this"]


async def test_a_group_of_errors_that_a_branch_raises_stays_a_group(runtime: Runtime) -> None:
    group = ExceptionGroup("several", [Boom("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as raised:
        await value_of(runtime, lambda: gather(later(1), fails(group)))
    assert raised.value is group


async def test_an_error_that_is_no_exception_passes_too_and_the_run_is_recorded(
    runtime: Runtime,
) -> None:
    with pytest.raises(Interrupt):
        await value_of(runtime, lambda: gather(ask(), fails(Interrupt())))
    found = await the_run(runtime.store)
    assert (found.run.status, found.run.error_type) == (Status.FAILED, "Interrupt")
    assert found.still_running() == []


@pytest.mark.parametrize("place", range(4))
async def test_branches_that_never_began_are_closed_without_a_warning(
    runtime: Runtime, place: int
) -> None:
    """The first branch fails before the others had a turn; warnings are errors here."""
    branches = [later(1), later(2), later(3)]
    branches.insert(place, fails(Boom()))  # type: ignore[arg-type]
    with pytest.raises(Boom):
        await value_of(runtime, lambda: gather(*branches))
    branches.clear()
    gc.collect()


async def test_a_task_given_as_a_branch_is_cancelled_with_the_others(runtime: Runtime) -> None:
    tasks = [asyncio.create_task(never()) for _ in range(2)]
    with pytest.raises(Boom):
        await value_of(runtime, lambda: gather(tasks[0], fails(Boom()), tasks[1]))
    await asyncio.sleep(0)
    assert all(task.cancelled() for task in tasks)


async def test_outside_a_run_it_says_so_and_leaves_no_coroutine_behind() -> None:
    with pytest.raises(OutsideRun, match="gather"):
        await gather(later(1), later(2))
    gc.collect()


async def test_a_failure_that_the_flow_catches_leaves_the_deadline_in_force(
    runtime: Runtime,
) -> None:
    """asyncio.TaskGroup would leave the task with one cancellation too many (Python 3.11)."""

    async def body() -> None:
        with pytest.raises(Boom):
            await gather(never(), fails(Boom()))
        await never()

    with pytest.raises(DeadlineExceeded):
        await runtime.run(flow(deadline=0.05)(body))
    assert (await the_run(runtime.store)).run.error_type == "DeadlineExceeded"


async def test_a_deadline_that_passes_while_branches_clean_up_is_not_forgotten(
    runtime: Runtime,
) -> None:
    async def slow_to_end() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(0.1)

    async def body() -> None:
        try:
            await gather(slow_to_end(), fails(Boom()))
        except Boom:
            await never()

    with pytest.raises(DeadlineExceeded):
        await runtime.run(flow(deadline=0.05)(body))


async def test_branches_of_a_users_own_task_group_may_fail_too(runtime: Runtime) -> None:
    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails(Boom()))
                group.create_task(never())
        except* Boom:
            pass
        await never()

    with pytest.raises(DeadlineExceeded):
        await runtime.run(flow(deadline=0.05)(body))


async def test_the_calls_of_a_stage_say_how_many_they_are(runtime: Runtime) -> None:
    async def body() -> None:
        await llm("first")
        await gather(*(llm(str(i)) for i in range(5)))
        await llm("last")

    await runtime.run(flow(deadline="1h")(body))
    engine = runtime.engine
    slos = [request.slo for request in engine.requests]  # type: ignore[attr-defined]
    assert [slo.stage_calls for slo in slos] == [1, 5, 5, 5, 5, 5, 1]
    assert [slo.stage for slo in slos] == [0, 1, 1, 1, 1, 1, 2]


async def test_many_nested_gathers_make_each_call_once(runtime: Runtime) -> None:
    async def tree(depth: int) -> int:
        if not depth:
            return len(await ask())
        return sum(await gather(*(tree(depth - 1) for _ in range(3))))

    result = await runtime.run(flow(tree), 3)
    found = await recorded(runtime.store, result.run_id)
    assert len(found.calls) == 27
    places = itertools.product(range(3), repeat=3)
    assert set(found.steps) == {f"ask[{a}][{b}][{c}]" for a, b, c in places}
    assert found.edges == set()
