"""What waited for what, against a reference that keeps every pair of calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import Runtime, flow, gather, llm, step, tool
from orchestrator.execution.causality import CausalLog, own_task
from patterns import stage_depths
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    Recorded,
    ask,
    law,
    recorded,
    scripted_runtime,
)

# A program is a list: a letter is a call of that name, a tuple is a gather of programs.
Part = str | tuple["Program", ...]
Program = list[Part]
Before = dict[str, set[str]]


def programs() -> st.SearchStrategy[Program]:
    """Programs whose calls are marked "?"; `named` gives each a name of its own."""
    return st.recursive(
        st.just([]),
        lambda inner: st.lists(
            st.just("?") | st.lists(inner, max_size=3).map(tuple), min_size=1, max_size=4
        ),
        max_leaves=12,
    )


def named(program: Program, names: list[str] | None = None) -> Program:
    names = names if names is not None else [f"c{i}" for i in range(1000, 0, -1)]
    return [
        names.pop() if isinstance(part, str) else tuple(named(branch, names) for branch in part)
        for part in program
    ]


def naive(program: Program, before: frozenset[str] = frozenset()) -> tuple[Before, frozenset[str]]:
    """For each call all calls that had to end before it; and all that ended by the end."""
    found: Before = {}
    for part in program:
        if isinstance(part, str):
            found[part] = set(before)
            before = before | {part}
        else:
            ends = before
            for branch in part:
                inside, ended = naive(branch, before)
                found |= inside
                ends = ends | ended
            before = ends
    return found, before


def last_of(before: Before) -> Before:
    """The same without what follows from the rest: the transitive reduction."""
    return {
        call: {one for one in waited if not any(one in before[other] for other in waited)}
        for call, waited in before.items()
    }


def tools_by_name(found: Recorded) -> Before:
    """For each recorded tool call those that it is recorded to have waited for."""
    name = {call.node: call.identity for call in found.calls}
    parents: Before = {call.identity: set() for call in found.calls}
    for parent, child in found.edges:
        parents[name[child]].add(name[parent])
    return parents


def closed(parents: Before) -> Before:
    """Ancestors from parents."""
    ancestors: Before = {}

    def of(call: str) -> set[str]:
        if call not in ancestors:
            ancestors[call] = set(parents[call]).union(*(of(parent) for parent in parents[call]))
        return ancestors[call]

    for call in parents:
        of(call)
    return ancestors


async def call(name: str, delay_s: float = 0.0) -> None:
    """One tool call of a given name."""

    async def body() -> None:
        await asyncio.sleep(delay_s)

    body.__name__ = name
    await tool(body)()


def assert_stages_are_longest_paths(found: Recorded) -> None:
    parents = [
        tuple(p for p, child in found.edges if child == node) for node in range(len(found.calls))
    ]
    assert tuple(call.stage for call in found.calls) == stage_depths(parents)
    completed = [call.stage for call in found.calls if call.status is Status.COMPLETED]
    assert found.pattern.stage_of == tuple(sorted(completed))


@settings(law, max_examples=30)
@given(program=programs(), seed=st.integers())
def test_steps_and_gathers_record_exactly_the_last_calls_that_each_call_waited_for(
    program: Program, seed: int
) -> None:
    program = named(program)
    delays = random.Random(seed)

    @step
    async def perform(program: Program) -> None:
        for part in program:
            if isinstance(part, str):
                await call(part, delays.choice([0, 0.0003]))
            else:
                await gather(*(perform(branch) for branch in part))

    async def main(folder: Path) -> Recorded:
        async with scripted_runtime(folder) as runtime:
            result = await runtime.run(flow(perform), program)
            return await recorded(runtime.store, result.run_id)

    with TemporaryDirectory() as folder:
        found = asyncio.run(main(Path(folder)))
    assert tools_by_name(found) == last_of(naive(program)[0])
    if found.calls:
        assert_stages_are_longest_paths(found)


@law
@given(program=programs(), seed=st.integers())
def test_bare_tasks_wait_for_all_that_ended_before_them_and_for_nothing_else(
    program: Program, seed: int
) -> None:
    """Without gather() only times are known: a reference notes what had ended at each begin."""
    order = random.Random(seed)
    log, ended, names = CausalLog(), set[str](), list[str]()
    before: Before = {}

    async def one(name: str) -> None:
        before[name] = set(ended)
        node = log.begin().node
        assert node == len(names)
        names.append(name)
        for _ in range(order.randint(0, 3)):
            await asyncio.sleep(0)
        ended.add(name)
        log.end(node)

    async def perform(program: Program) -> None:
        for part in program:
            if isinstance(part, str):
                await asyncio.create_task(one(part))
            else:
                tasks = [asyncio.create_task(perform(branch)) for branch in part]
                await asyncio.gather(*tasks)

    async def main() -> None:
        own_task()
        await perform(named(program))

    asyncio.run(main())
    parents = {
        names[node]: {names[parent] for parent in parents}
        for node, parents in enumerate(log.parents)
    }
    assert closed(parents) == before
    assert parents == last_of(before)
    assert tuple(log.stages) == stage_depths(log.parents)


async def found_of(runtime: Runtime, body: Callable[[], Awaitable[object]]) -> Before:
    result = await runtime.run(flow(name="test")(body))
    found = await recorded(runtime.store, result.run_id)
    assert_stages_are_longest_paths(found)
    return tools_by_name(found)


async def test_a_bare_task_follows_what_came_before_it_and_precedes_what_comes_after(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        await call("a")
        task = asyncio.create_task(call("b"))
        await task
        await call("c")

    assert await found_of(runtime, body) == {"a": set(), "b": {"a"}, "c": {"b"}}


async def test_a_call_does_not_wait_for_a_bare_task_that_still_runs(runtime: Runtime) -> None:
    gate = asyncio.Event()

    @tool
    async def slow() -> None:
        await gate.wait()

    async def body() -> None:
        task = asyncio.create_task(slow())
        await call("a")
        gate.set()
        await task
        await call("b")

    assert await found_of(runtime, body) == {"slow": set(), "a": set(), "b": {"a", "slow"}}


async def test_what_follows_a_gather_within_a_bare_task_follows_its_branches(
    runtime: Runtime,
) -> None:
    async def both() -> None:
        await gather(call("a"), call("b"))

    async def body() -> None:
        await asyncio.create_task(both())
        await call("c")

    assert await found_of(runtime, body) == {"a": set(), "b": set(), "c": {"a", "b"}}


async def test_calls_from_a_thread_are_ordered_by_when_they_began_and_ended(
    runtime: Runtime,
) -> None:
    loop = asyncio.get_running_loop()

    def in_thread() -> None:
        for name in ("b", "c"):
            asyncio.run_coroutine_threadsafe(call(name), loop).result()

    async def body() -> None:
        await call("a")
        await asyncio.to_thread(in_thread)
        await call("d")

    expected = {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c"}}
    assert await found_of(runtime, body) == expected


async def test_what_follows_a_caught_failure_follows_the_calls_that_had_ended_in_the_branches(
    runtime: Runtime,
) -> None:
    async def fails() -> None:
        await call("a")
        raise Boom

    async def waits() -> None:
        await call("b")
        await asyncio.Event().wait()

    async def body() -> None:
        with pytest.raises(Boom):
            await gather(fails(), waits())
        await call("c")

    assert await found_of(runtime, body) == {"a": set(), "b": set(), "c": {"a", "b"}}


async def test_a_failed_call_is_nobodys_parent_and_no_part_of_the_pattern(
    runtime: Runtime,
) -> None:
    @tool
    async def fails() -> None:
        raise Boom

    async def body() -> None:
        await call("a")
        with pytest.raises(Boom):
            await fails()
        await call("b")

    assert await found_of(runtime, body) == {"a": set(), "fails": {"a"}, "b": {"a"}}


async def test_two_runs_at_once_do_not_see_each_others_calls(runtime: Runtime) -> None:
    async def body() -> None:
        for _ in range(5):
            await ask()
            await asyncio.create_task(ask())

    results = await asyncio.gather(*(runtime.run(flow(body)) for _ in range(4)))
    for result in results:
        found = await recorded(runtime.store, result.run_id)
        assert found.edges == {(node, node + 1) for node in range(9)}


async def test_a_run_started_within_a_run_does_not_follow_its_calls(runtime: Runtime) -> None:
    @flow
    async def inner() -> None:
        await llm("within")

    async def body() -> str:
        await ask()
        return (await runtime.run(inner)).run_id

    outer = await runtime.run(flow(body))
    assert (await recorded(runtime.store, outer.value)).edges == set()
    assert len((await recorded(runtime.store, outer.run_id)).calls) == 1
