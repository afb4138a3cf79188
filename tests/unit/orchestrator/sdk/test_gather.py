"""gather: the results of parallel branches, failures, and the cancellation of the others."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, gather, llm
from orchestrator.errors import DeadlineExceeded, OutsideRun
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, Boom, ask, recorded, the_run
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which would end the test session itself."""


async def later(value: int, turns: int = 3) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def never() -> None:
    await asyncio.sleep(NEVER_S)


async def fails(error: BaseException) -> None:
    raise error


async def value_of(runtime: Runtime, body: Callable[[], Awaitable[object]]) -> object:
    """The result of a body that runs as a flow."""
    return (await runtime.run(flow(name="test")(body))).value


async def test_results_are_in_the_order_given_whichever_branch_is_faster(runtime: Runtime) -> None:
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


async def test_any_awaitable_may_be_a_branch(runtime: Runtime) -> None:
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


async def test_a_branchs_error_is_raised_unchanged_with_its_cause_and_notes(
    runtime: Runtime,
) -> None:
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


async def test_a_base_exception_is_raised_too_and_the_run_is_recorded_as_failed(
    runtime: Runtime,
) -> None:
    with pytest.raises(Interrupt):
        await value_of(runtime, lambda: gather(ask(), fails(Interrupt())))
    record = await the_run(runtime.store)
    assert (record.run.status, record.run.error_type) == (Status.FAILED, "Interrupt")
    assert record.still_running() == []


@pytest.mark.parametrize("place", range(4))
async def test_branches_that_never_began_are_closed_without_a_warning(
    runtime: Runtime, place: int
) -> None:
    """The failing branch fails before later ones had a turn; warnings are errors in tests."""
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


async def test_outside_a_run_it_raises_outside_run_and_closes_its_branches() -> None:
    with pytest.raises(OutsideRun, match="gather"):
        await gather(later(1), later(2))
    gc.collect()


@in_virtual_time
async def test_a_failure_that_the_flow_catches_leaves_the_deadline_in_force(
    tmp_path: Path,
) -> None:
    """asyncio.TaskGroup would leave the task's cancellation count too high (Python 3.11)."""

    async def body() -> None:
        with pytest.raises(Boom):
            await gather(never(), fails(Boom()))
        await never()

    async with timed_runtime(tmp_path) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(flow(deadline=0.05)(body))
        assert (await the_run(runtime.store)).run.error_type == "DeadlineExceeded"


@in_virtual_time
async def test_a_deadline_that_passes_while_branches_clean_up_still_ends_the_run(
    tmp_path: Path,
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

    async with timed_runtime(tmp_path) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(flow(deadline=0.05)(body))


@in_virtual_time
async def test_a_failed_task_group_of_the_user_leaves_the_deadline_in_force(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails(Boom()))
                group.create_task(never())
        except* Boom:
            pass
        await never()

    async with timed_runtime(tmp_path) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(flow(deadline=0.05)(body))


async def test_the_slo_of_a_call_has_the_number_of_parallel_calls_of_its_stage(
    runtime: Runtime,
) -> None:
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
    record = await recorded(runtime.store, result.run_id)
    assert len(record.calls) == 27
    places = itertools.product(range(3), repeat=3)
    assert set(record.steps) == {f"ask[{a}][{b}][{c}]" for a, b, c in places}
    assert record.edges == set()
