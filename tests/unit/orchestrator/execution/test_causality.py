"""Causal dependencies between calls, compared with a reference that keeps every pair of calls."""

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
from tests.strategies import examples
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
    """Programs with unnamed calls, "?"; `named` gives each call a name."""
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
    """For each call, all calls that had to end before it; and all calls that ended by the end."""
    ancestors: Before = {}
    for part in program:
        if isinstance(part, str):
            ancestors[part] = set(before)
            before = before | {part}
        else:
            ends = before
            for branch in part:
                in_branch, ended = naive(branch, before)
                ancestors |= in_branch
                ends = ends | ended
            before = ends
    return ancestors, before


def reduced(before: Before) -> Before:
    """The transitive reduction: for each call only its direct predecessors."""
    return {
        call: {name for name in names if not any(name in before[other] for other in names)}
        for call, names in before.items()
    }


def tools_by_name(record: Recorded) -> Before:
    """For each recorded tool call the names of its recorded parents."""
    name = {call.node: call.identity for call in record.calls}
    parents: Before = {call.identity: set() for call in record.calls}
    for parent, child in record.edges:
        parents[name[child]].add(name[parent])
    return parents


def closed(parents: Before) -> Before:
    """All ancestors of each call, from its parents: the transitive closure."""
    ancestors: Before = {}

    def of(call: str) -> set[str]:
        if call not in ancestors:
            ancestors[call] = set(parents[call]).union(*(of(parent) for parent in parents[call]))
        return ancestors[call]

    for call in parents:
        of(call)
    return ancestors


async def call(name: str, delay_s: float = 0.0) -> None:
    """Make one tool call with this name."""

    async def body() -> None:
        await asyncio.sleep(delay_s)

    body.__name__ = name
    await tool(body)()


def assert_stages_are_longest_paths(record: Recorded) -> None:
    parents = [
        tuple(p for p, child in record.edges if child == node) for node in range(len(record.calls))
    ]
    assert tuple(call.stage for call in record.calls) == stage_depths(parents)
    nodes = [call.stage for call in record.calls if call.status is not Status.FAILED]
    assert record.pattern.stage_of == tuple(sorted(nodes))


@settings(law, max_examples=examples(30))
@given(program=programs(), seed=st.integers())
def test_with_steps_and_gathers_exactly_the_direct_predecessors_of_each_call_are_recorded(
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
        record = asyncio.run(main(Path(folder)))
    assert tools_by_name(record) == reduced(naive(program)[0])
    if record.calls:
        assert_stages_are_longest_paths(record)


@law
@given(program=programs(), seed=st.integers())
def test_calls_in_plain_asyncio_tasks_depend_on_exactly_the_calls_that_had_ended(
    program: Program, seed: int
) -> None:
    """Without gather() only times are known: the reference keeps what had ended at each start."""
    order = random.Random(seed)
    log, ended, names = CausalLog(), set[str](), list[str]()
    before: Before = {}

    async def one_call(name: str) -> None:
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
                await asyncio.create_task(one_call(part))
            else:
                tasks = [asyncio.create_task(perform(branch)) for branch in part]
                await asyncio.gather(*tasks)

    async def main() -> None:
        own_task()
        await perform(named(program))

    asyncio.run(main())
    parents = {
        names[node]: {names[parent] for parent in parents} for node, parents in log.parents.items()
    }
    assert closed(parents) == before
    assert parents == reduced(before)
    assert tuple(log.stages.values()) == stage_depths(list(log.parents.values()))


async def parents_in(runtime: Runtime, body: Callable[[], Awaitable[object]]) -> Before:
    """The recorded parents of each tool call of a body that runs as a flow."""
    result = await runtime.run(flow(name="test")(body))
    record = await recorded(runtime.store, result.run_id)
    assert_stages_are_longest_paths(record)
    return tools_by_name(record)


async def test_a_plain_task_depends_on_earlier_calls_and_later_calls_depend_on_it(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        await call("a")
        task = asyncio.create_task(call("b"))
        await task
        await call("c")

    assert await parents_in(runtime, body) == {"a": set(), "b": {"a"}, "c": {"b"}}


async def test_a_call_does_not_depend_on_a_plain_task_that_still_runs(runtime: Runtime) -> None:
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

    assert await parents_in(runtime, body) == {"slow": set(), "a": set(), "b": {"a", "slow"}}


async def test_a_call_after_a_gather_in_a_plain_task_depends_on_its_branches(
    runtime: Runtime,
) -> None:
    async def both() -> None:
        await gather(call("a"), call("b"))

    async def body() -> None:
        await asyncio.create_task(both())
        await call("c")

    assert await parents_in(runtime, body) == {"a": set(), "b": set(), "c": {"a", "b"}}


async def test_calls_from_a_thread_are_ordered_by_their_times(
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
    assert await parents_in(runtime, body) == expected


async def test_a_call_after_a_caught_failure_depends_on_the_calls_completed_in_the_branches(
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

    assert await parents_in(runtime, body) == {"a": set(), "b": set(), "c": {"a", "b"}}


async def test_a_failed_call_has_no_children_and_is_not_in_the_pattern(
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

    assert await parents_in(runtime, body) == {"a": set(), "fails": {"a"}, "b": {"a"}}


async def test_concurrent_runs_do_not_depend_on_each_others_calls(runtime: Runtime) -> None:
    async def body() -> None:
        for _ in range(5):
            await ask()
            await asyncio.create_task(ask())

    results = await asyncio.gather(*(runtime.run(flow(body)) for _ in range(4)))
    for result in results:
        record = await recorded(runtime.store, result.run_id)
        assert record.edges == {(node, node + 1) for node in range(9)}


async def test_a_run_started_within_a_run_does_not_depend_on_its_calls(runtime: Runtime) -> None:
    @flow
    async def inner() -> None:
        await llm("within")

    async def body() -> str:
        await ask()
        return (await runtime.run(inner)).run_id

    outer = await runtime.run(flow(body))
    assert (await recorded(runtime.store, outer.value)).edges == set()
    assert len((await recorded(runtime.store, outer.run_id)).calls) == 1
