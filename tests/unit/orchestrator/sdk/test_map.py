"""The same work for many items: how much of it at once, in which order, and what a failure does."""

from __future__ import annotations

import asyncio
import gc
import random as plain_random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import OutsideRun, Runtime, flow, gather, step
from orchestrator import map as map_
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    ask,
    law,
    recorded,
    scripted_runtime,
    the_run,
)

T = TypeVar("T")

ID = "the-run"
few = settings(law, max_examples=25)


async def value_of(runtime: Runtime, body: Callable[[], Awaitable[T]]) -> T:
    """What a body returns when it runs as a flow."""

    async def typed() -> T:
        return await body()

    typed.__annotations__.clear()
    return (await runtime.run(flow(name="test")(typed))).value


def value_alone(body: Callable[[], Awaitable[T]]) -> T:
    """The same, in a runtime and a loop of its own."""

    async def run() -> T:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder)) as runtime:
                return await value_of(runtime, body)

    return asyncio.run(run())


class Counted:
    """Work that takes some turns of the loop, and knows how much of it there was at once."""

    def __init__(self, turns: Callable[[int], int]) -> None:
        self.turns = turns
        self.num_now = self.most = 0
        self.begun: list[int] = []

    async def __call__(self, item: int) -> int:
        self.begun.append(item)
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        for _ in range(self.turns(item)):
            await asyncio.sleep(0)
        self.num_now -= 1
        return item * item


@few
@given(
    turns=st.lists(st.integers(0, 9), max_size=20),
    concurrency=st.integers(1, 25),
)
def test_results_come_in_the_items_order_and_never_more_work_at_once_than_allowed(
    turns: list[int], concurrency: int
) -> None:
    """However long each item takes; and as much at once as there may be, if none ends at once."""
    work = Counted(lambda item: turns[item])

    async def body() -> list[int]:
        return list(await map_(work, range(len(turns)), concurrency=concurrency))

    assert value_alone(body) == [item * item for item in range(len(turns))]
    assert work.begun == list(range(len(turns)))
    assert work.most <= concurrency
    if turns and min(turns) > 0:
        assert work.most == min(concurrency, len(turns))


async def test_sixteen_are_done_at_once_unless_told_otherwise(runtime: Runtime) -> None:
    work = Counted(lambda _: 3)

    async def body() -> None:
        await map_(work, range(40))

    await value_of(runtime, body)
    assert work.most == 16


async def test_a_map_of_nothing_is_an_empty_tuple_and_does_nothing(runtime: Runtime) -> None:
    work = Counted(lambda _: 1)

    async def body() -> bool:
        return await map_(work, []) == await map_(work, iter(())) == ()

    assert await value_of(runtime, body)
    assert work.begun == []


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_no_work_at_once_is_refused(runtime: Runtime, concurrency: int) -> None:
    async def body() -> None:
        await map_(Counted(lambda _: 1), [1], concurrency=concurrency)

    with pytest.raises(ValueError, match="at least 1"):
        await value_of(runtime, body)


@pytest.mark.parametrize("concurrency", [1, 2, 16])
@pytest.mark.parametrize("failing", [0, 2, 5])
async def test_a_failure_cancels_what_runs_and_what_waits_and_is_raised_once_all_have_ended(
    runtime: Runtime, concurrency: int, failing: int
) -> None:
    error = Boom("one of them")
    begun, ended = [], []

    async def work(item: int) -> int:
        begun.append(item)
        try:
            await asyncio.sleep(0.001)
            if item == failing:
                raise error
            if item > failing - concurrency:
                await asyncio.sleep(NEVER_S)
            return item
        finally:
            await asyncio.sleep(0.001)
            ended.append(item)

    async def body() -> None:
        await map_(work, range(6), concurrency=concurrency)

    with pytest.raises(Boom) as raised:
        await value_of(runtime, body)
    assert raised.value is error
    assert failing in begun
    assert sorted(ended) == sorted(begun)
    assert len(begun) <= failing + concurrency
    gc.collect()  # warnings are errors: no coroutine was left unawaited


async def test_work_that_raises_before_it_awaits_is_a_failure_as_any_other(
    runtime: Runtime,
) -> None:
    def work(item: int) -> Awaitable[int]:
        raise Boom("at once")

    async def body() -> None:
        await map_(work, range(3))

    with pytest.raises(Boom, match="at once"):
        await value_of(runtime, body)
    gc.collect()


async def test_work_that_is_cancelled_by_itself_gives_its_place_to_the_next(
    runtime: Runtime,
) -> None:
    """A cancellation is no failure: the others are done all the same."""
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 0:
            raise asyncio.CancelledError
        done.append(item)

    async def body() -> None:
        async with asyncio.timeout(30):
            await map_(work, range(4), concurrency=1)

    with pytest.raises(asyncio.CancelledError):
        await value_of(runtime, body)
    assert done == [1, 2, 3]


async def test_items_that_fail_to_come_leave_no_work_behind(runtime: Runtime) -> None:
    work = Counted(lambda _: 1)

    def items() -> Iterator[int]:
        yield from range(3)
        raise Boom("no more of them")

    async def body() -> None:
        await map_(work, items())

    with pytest.raises(Boom, match="no more of them"):
        await value_of(runtime, body)
    gc.collect()
    assert work.begun == []


async def test_outside_a_flow_it_says_so_and_leaves_nothing_behind() -> None:
    work = Counted(lambda _: 1)
    with pytest.raises(OutsideRun):
        await map_(work, range(3))
    gc.collect()
    assert work.begun == []


async def test_a_cancelled_map_cancels_all_of_its_work(runtime: Runtime) -> None:
    ended: list[int] = []
    begun = asyncio.Event()

    async def work(item: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            ended.append(item)

    async def body() -> None:
        await map_(work, range(9), concurrency=4)

    running = asyncio.create_task(value_of(runtime, body))
    await begun.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [0, 1, 2, 3]
    assert (await the_run(runtime.store)).run.status is Status.CANCELLED


async def test_what_follows_a_map_depends_on_all_of_it(runtime: Runtime) -> None:
    async def body() -> None:
        await map_(ask, ["a", "b", "c"], concurrency=3)
        await ask("d")

    await value_of(runtime, body)
    assert (await the_run(runtime.store)).edges == {(0, 3), (1, 3), (2, 3)}


@few
@given(
    num_items=st.integers(1, 8),
    concurrency=st.integers(1, 8),
    stop_after=st.integers(0, 8),
    seed=st.integers(0, 99),
)
def test_a_resumed_map_does_each_item_once_whichever_were_done_before(
    num_items: int, concurrency: int, stop_after: int, seed: int
) -> None:
    """And whichever is faster in either execution."""
    speeds = plain_random.Random(seed)
    done: Counter[int] = Counter()
    raise_once = [True]

    @step
    async def work(item: int) -> int:
        for _ in range(speeds.randint(0, 9)):
            await asyncio.sleep(0)
        if raise_once and done.total() >= min(stop_after, num_items - 1):
            raise_once.clear()
            raise Boom("the process dies")
        done[item] += 1
        return 10 * item

    @flow
    async def both() -> list[int]:
        first, second = await gather(
            map_(work, range(num_items), concurrency=concurrency),
            map_(work, range(num_items, 2 * num_items), concurrency=concurrency),
        )
        return [*first, *second]

    async def run() -> list[int]:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder)) as runtime:
                with pytest.raises(Boom):
                    await runtime.run(both.options(run_id=ID))
                value = (await runtime.resume(ID, both)).value
                found = await recorded(runtime.store, ID)
                assert found.still_running() == []
                assert len(found.steps) == 2 * num_items
                return value

    assert asyncio.run(run()) == [10 * item for item in range(2 * num_items)]
    assert done == dict.fromkeys(range(2 * num_items), 1)
