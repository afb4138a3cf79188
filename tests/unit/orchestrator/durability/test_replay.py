"""Replay identifies a step by its path, its place and its arguments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from orchestrator import Flow, FlowChanged, Runtime, flow, gather, now, remaining, step, tool
from orchestrator.durability.digests import digest_of
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import Boom, as_coroutine, recorded
from tests.unit.orchestrator.run_samples import ID


@step
async def a(number: int = 0) -> str:
    return f"a{number}"


@step
async def b(number: int = 0) -> str:
    return f"b{number}"


class Slow:
    """Work that lasts a given number of turns of the event loop, to end in any order."""

    def __init__(self) -> None:
        self.num_calls: Counter[int] = Counter()
        self.turns: dict[int, int] = {}

    async def __call__(self, number: int) -> int:
        for _ in range(self.turns.get(number, 0)):
            await asyncio.sleep(0)
        self.num_calls[number] += 1
        return number


def together(work: Callable[[int], Awaitable[Any]]) -> Awaitable[list[Any]]:
    return asyncio.gather(*[work(number) for number in range(3)])


async def in_a_group(work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(as_coroutine(work(number))) for number in range(3)]
    return [task.result() for task in started]


async def one_at_a_time(work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return [await asyncio.wait_for(as_coroutine(work(number)), 60) for number in range(3)]


@pytest.mark.parametrize("plain", [together, in_a_group, one_at_a_time])
async def test_tasks_of_asyncio_get_their_own_results_on_resume(
    runtime: Runtime, plain: Callable[..., Awaitable[list[Any]]]
) -> None:
    waiting, looking = Slow(), Slow()
    executions: list[list[Any]] = []

    @step
    async def look(number: int) -> int:
        return await looking(number)

    async def branch(number: int) -> tuple[int, int, str, str]:
        await waiting(number)
        return number, await look(number), await a(), now().isoformat()

    @flow
    async def body() -> None:
        executions.append(await plain(branch))
        if len(executions) == 1:
            raise Boom("the process dies")

    waiting.turns = {0: 9, 1: 4}
    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    waiting.turns = {1: 6, 2: 9}
    await runtime.resume(ID, body)
    assert executions[1] == executions[0]
    assert [result[1] for result in executions[0]] == [0, 1, 2]
    assert looking.num_calls == {0: 1, 1: 1, 2: 1}


async def test_steps_that_begin_in_completion_order_are_not_confused_on_resume(
    runtime: Runtime,
) -> None:
    waiting, executions = Slow(), list[list[str]]()

    @flow
    async def body() -> None:
        executions.append([])
        for ended in asyncio.as_completed([waiting(number) for number in range(3)]):
            executions[-1].append(await a(await ended))
        if len(executions) == 1:
            raise Boom("the process dies")

    waiting.turns = {0: 9, 1: 4}
    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    waiting.turns = {1: 6, 2: 9}
    with pytest.raises(FlowChanged, match=r"step a is recorded .* step a with other arguments"):
        await runtime.resume(ID, body)


async def test_a_task_with_an_argument_that_differs_each_time_does_not_repeat_an_effect(
    runtime: Runtime,
) -> None:
    sent: list[str] = []

    @tool
    async def send(text: str) -> None:
        sent.append(text)

    @flow
    async def body() -> None:
        first = not sent
        await asyncio.gather(send(f"mail of execution {len(sent)}"))
        if first:
            raise Boom("the process dies")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    with pytest.raises(FlowChanged, match="with other arguments"):
        await runtime.resume(ID, body)
    assert sent == ["mail of execution 0"]


def two_steps_and_others() -> tuple[Flow[[], str], dict[str, Flow[[], str]]]:
    """A flow that fails after two steps, and changed versions of it."""
    raise_once = RaiseOnce()

    def version(body: Callable[[], Awaitable[str]]) -> Flow[[], str]:
        return flow(name="versioned")(body)

    @version
    async def before() -> str:
        result = await a() + await b()
        raise_once()
        return result

    @version
    async def swapped() -> str:
        return await b() + await a()

    @version
    async def shorter() -> str:
        return await a()

    @version
    async def longer() -> str:
        return await a() + await b() + await a(2)

    return before, {"swapped": swapped, "shorter": shorter, "longer": longer}


@pytest.mark.parametrize(
    ("change", "where"),
    [("swapped", "step a is recorded where the flow now begins step b"), ("shorter", "step b")],
)
async def test_a_changed_flow_is_refused_with_the_step_that_changed(
    runtime: Runtime, change: str, where: str
) -> None:
    before, after = two_steps_and_others()
    await run_until_interrupted(runtime, before)
    with pytest.raises(FlowChanged, match=where):
        await runtime.resume(ID, after[change])
    assert (await runtime.resume(ID, before)).value == "a0b0"


@pytest.mark.parametrize(("change", "value"), [("swapped", "b0a0"), ("shorter", "a0")])
async def test_a_changed_flow_is_resumed_with_allow_changed(
    runtime: Runtime, change: str, value: str
) -> None:
    before, after = two_steps_and_others()
    await run_until_interrupted(runtime, before)
    resumed = await runtime.resume(ID, after[change], allow_changed=True)
    assert resumed.value == value


async def test_a_flow_with_added_steps_at_its_end_can_be_resumed(runtime: Runtime) -> None:
    before, after = two_steps_and_others()
    await run_until_interrupted(runtime, before)
    assert (await runtime.resume(ID, after["longer"])).value == "a0b0a2"


async def in_parallel() -> list[str]:
    return list(await gather(a(1), a(2), b()))


async def after_one_step() -> list[str]:
    return [await b(7), *await in_parallel()]


async def in_sequence() -> list[str]:
    return [await a(1), await a(2), await b()]


async def fewer() -> list[str]:
    return list(await gather(a(1), a(2)))


async def swapped() -> list[str]:
    return list(await gather(a(2), a(1), b()))


async def longer_branches() -> list[str]:
    async def two() -> str:
        return await a(1) + await a(2)

    return list(await gather(two(), a(2), b()))


def versions(before: Any, after: Any) -> tuple[Flow[[], Any], Flow[[], Any]]:
    """Two versions of a flow; the first execution fails after the body."""
    must_fail = [True]

    def version(body: Callable[[], Awaitable[Any]]) -> Flow[[], Any]:
        async def whole() -> list[str]:
            results = await body()
            if must_fail:
                must_fail.clear()
                raise Boom("the process dies")
            return [*results, await b(9)]

        return flow(name="versioned")(whole)

    return version(before), version(after)


CHANGES = [
    (in_parallel, in_sequence, "value gather-3 is recorded where the flow now begins step a"),
    (in_sequence, in_parallel, "step a is recorded where the flow now begins value gather-3"),
    (in_parallel, fewer, "value gather-3 is recorded .* value gather-2"),
    (in_parallel, swapped, "with other arguments"),
    (longer_branches, in_parallel, "is recorded where the flow now begins no further step"),
    (after_one_step, in_parallel, "step b is recorded where the flow now begins value gather-3"),
]


@pytest.mark.parametrize(("before", "after", "where"), CHANGES)
async def test_a_flow_with_another_shape_is_refused_and_the_old_one_still_resumes(
    runtime: Runtime, before: Any, after: Any, where: str
) -> None:
    old, new = versions(before, after)
    with pytest.raises(Boom):
        await runtime.run(old.options(run_id=ID))
    with pytest.raises(FlowChanged, match=where):
        await runtime.resume(ID, new)
    assert (await runtime.resume(ID, old)).value == [*await result_alone(before), "b9"]


@pytest.mark.parametrize(("before", "after", "where"), CHANGES)
async def test_a_flow_with_another_shape_is_resumed_with_allow_changed(
    runtime: Runtime, before: Any, after: Any, where: str
) -> None:
    old, new = versions(before, after)
    with pytest.raises(Boom):
        await runtime.run(old.options(run_id=ID))
    resumed = await runtime.resume(ID, new, allow_changed=True)
    assert resumed.value == [*await result_alone(after), "b9"]


async def result_alone(body: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """The result of a body in a run of its own."""
    alone = flow(name="alone")(body)
    return await alone()


async def test_a_step_is_recorded_with_a_digest_of_its_arguments(runtime: Runtime) -> None:
    @flow(name="digests")
    async def body() -> None:
        await gather(a(1), a(1), a(2))

    run = await runtime.run(body)
    steps = (await recorded(runtime.store, run.run_id)).steps
    one, same, other = (steps[f"a[{number}]"].arguments for number in range(3))
    assert one == same == digest_of([("number", 1)])
    assert one != other


async def test_recorded_values_used_as_arguments_are_the_same_on_resume(
    runtime: Runtime,
) -> None:
    """Even if recording changes their types."""
    raise_once, used = RaiseOnce(), list[Any]()

    @step
    async def score() -> float:
        return 3

    @step
    async def use(*values: object) -> str:
        used.append(values)
        return str(values)

    async def in_a_task(number: int) -> str:
        return await use(number, now())

    @flow
    async def body(limit: float, at: datetime) -> tuple[str, ...]:
        first = await use(limit, at, now(), await score(), remaining())
        others = await asyncio.gather(in_a_task(1), in_a_task(2))
        raise_once()
        return first, *others

    zone = ZoneInfo("Europe/Berlin")
    await run_until_interrupted(runtime, body, 30, datetime(2026, 7, 1, 12, tzinfo=zone))
    num_used = len(used)
    await runtime.resume(ID, body)
    assert len(used) == num_used == 3


class Client:
    """A client with a repr that changes each time."""

    num_requests = 0

    def __repr__(self) -> str:
        self.num_requests += 1
        return f"<Client requests={self.num_requests}>"


@dataclass
class Agent:
    calls: int = 0

    @step
    async def act(self, client: Client, number: int) -> int:
        self.calls += 1
        return number


async def test_the_state_of_self_or_of_a_client_does_not_change_the_arguments(
    runtime: Runtime,
) -> None:
    raise_once = RaiseOnce()

    @flow
    async def body() -> int:
        agent, client = Agent(), Client()
        for _ in range(raise_once.error is None):
            repr(client)
        total = await agent.act(client, 1) + await agent.act(client, 2)
        raise_once()
        return total

    await run_until_interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == 3
