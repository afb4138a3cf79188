"""map: concurrency, the order of results, failures, and resumed maps."""

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
from tests.strategies import examples
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
few = settings(law, max_examples=examples(25))


async def value_of(runtime: Runtime, body: Callable[[], Awaitable[T]]) -> T:
    """The result of a body that runs as a flow."""

    async def typed() -> T:
        return await body()

    typed.__annotations__.clear()
    return (await runtime.run(flow(name="test")(typed))).value


def value_alone(body: Callable[[], Awaitable[T]]) -> T:
    """The same, in a new runtime on a new event loop."""

    async def run() -> T:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder)) as runtime:
                return await value_of(runtime, body)

    return asyncio.run(run())


class Counted:
    """Work that takes some turns of the event loop, and measures its concurrency."""

    def __init__(self, turns: Callable[[int], int]) -> None:
        self.turns = turns
        self.num_running = self.max_running = 0
        self.started: list[int] = []

    async def __call__(self, item: int) -> int:
        self.started.append(item)
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        for _ in range(self.turns(item)):
            await asyncio.sleep(0)
        self.num_running -= 1
        return item * item


@few
@given(
    turns=st.lists(st.integers(0, 9), max_size=20),
    concurrency=st.integers(1, 25),
)
def test_results_are_in_the_items_order_and_the_concurrency_limit_holds(
    turns: list[int], concurrency: int
) -> None:
    """However long each item takes; if none ends at once, the limit is reached."""
    work = Counted(lambda item: turns[item])

    async def body() -> list[int]:
        return list(await map_(work, range(len(turns)), concurrency=concurrency))

    assert value_alone(body) == [item * item for item in range(len(turns))]
    assert work.started == list(range(len(turns)))
    assert work.max_running <= concurrency
    if turns and min(turns) > 0:
        assert work.max_running == min(concurrency, len(turns))


async def test_the_default_concurrency_is_sixteen(runtime: Runtime) -> None:
    work = Counted(lambda _: 3)

    async def body() -> None:
        await map_(work, range(40))

    await value_of(runtime, body)
    assert work.max_running == 16


async def test_a_map_of_no_items_is_an_empty_tuple(runtime: Runtime) -> None:
    work = Counted(lambda _: 1)

    async def body() -> bool:
        return await map_(work, []) == await map_(work, iter(())) == ()

    assert await value_of(runtime, body)
    assert work.started == []


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_a_concurrency_below_one_is_refused(runtime: Runtime, concurrency: int) -> None:
    async def body() -> None:
        await map_(Counted(lambda _: 1), [1], concurrency=concurrency)

    with pytest.raises(ValueError, match="at least 1"):
        await value_of(runtime, body)


@pytest.mark.parametrize("concurrency", [1, 2, 16])
@pytest.mark.parametrize("failing", [0, 2, 5])
async def test_a_failure_cancels_running_and_waiting_items_and_is_raised_once_all_have_ended(
    runtime: Runtime, concurrency: int, failing: int
) -> None:
    error = Boom("one of them")
    started, ended = [], []

    async def work(item: int) -> int:
        started.append(item)
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
    assert failing in started
    assert sorted(ended) == sorted(started)
    assert len(started) <= failing + concurrency
    gc.collect()  # an unawaited coroutine would warn, and warnings are errors


async def test_work_that_raises_before_it_returns_an_awaitable_fails_the_map(
    runtime: Runtime,
) -> None:
    def work(item: int) -> Awaitable[int]:
        raise Boom("at once")

    async def body() -> None:
        await map_(work, range(3))

    with pytest.raises(Boom, match="at once"):
        await value_of(runtime, body)
    gc.collect()


async def test_work_that_raises_cancelled_error_lets_the_next_item_begin(
    runtime: Runtime,
) -> None:
    """A cancellation is not a failure: the other items are still processed."""
    num_calls: list[int] = []

    async def work(item: int) -> None:
        if item == 0:
            raise asyncio.CancelledError
        num_calls.append(item)

    async def body() -> None:
        async with asyncio.timeout(30):
            await map_(work, range(4), concurrency=1)

    with pytest.raises(asyncio.CancelledError):
        await value_of(runtime, body)
    assert num_calls == [1, 2, 3]


async def test_an_error_in_the_iteration_of_items_leaves_no_work_behind(runtime: Runtime) -> None:
    work = Counted(lambda _: 1)

    def items() -> Iterator[int]:
        yield from range(3)
        raise Boom("no more of them")

    async def body() -> None:
        await map_(work, items())

    with pytest.raises(Boom, match="no more of them"):
        await value_of(runtime, body)
    gc.collect()
    assert work.started == []


async def test_outside_a_flow_it_raises_outside_run_and_starts_nothing() -> None:
    work = Counted(lambda _: 1)
    with pytest.raises(OutsideRun):
        await map_(work, range(3))
    gc.collect()
    assert work.started == []


async def test_a_cancelled_map_cancels_all_of_its_work(runtime: Runtime) -> None:
    ended: list[int] = []
    started = asyncio.Event()

    async def work(item: int) -> None:
        started.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            ended.append(item)

    async def body() -> None:
        await map_(work, range(9), concurrency=4)

    running = asyncio.create_task(value_of(runtime, body))
    await started.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [0, 1, 2, 3]
    assert (await the_run(runtime.store)).run.status is Status.CANCELLED


async def test_a_call_after_a_map_depends_on_all_its_calls(runtime: Runtime) -> None:
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
def test_a_resumed_map_processes_each_item_once(
    num_items: int, concurrency: int, stop_after: int, seed: int
) -> None:
    """Whichever items were completed before, and whichever is faster in each execution."""
    speeds = plain_random.Random(seed)
    num_calls: Counter[int] = Counter()
    must_fail = [True]

    @step
    async def work(item: int) -> int:
        for _ in range(speeds.randint(0, 9)):
            await asyncio.sleep(0)
        if must_fail and num_calls.total() >= min(stop_after, num_items - 1):
            must_fail.clear()
            raise Boom("the process dies")
        num_calls[item] += 1
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
                record = await recorded(runtime.store, ID)
                assert record.still_running() == []
                assert len(record.steps) == 2 * num_items
                return value

    assert asyncio.run(run()) == [10 * item for item in range(2 * num_items)]
    assert num_calls == dict.fromkeys(range(2 * num_items), 1)
