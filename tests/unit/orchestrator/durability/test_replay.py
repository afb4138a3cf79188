"""What a step is known by on resume: where it stands and what it was called with."""

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
from tests.unit.orchestrator.breaking_samples import Breaking, interrupted
from tests.unit.orchestrator.orchestrator_samples import Boom, awaited, recorded
from tests.unit.orchestrator.run_samples import ID


@step
async def a(number: int = 0) -> str:
    return f"a{number}"


@step
async def b(number: int = 0) -> str:
    return f"b{number}"


class Slow:
    """A step whose calls take as long as they are told, so that they end in any order."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.turns: dict[int, int] = {}

    async def __call__(self, number: int) -> int:
        for _ in range(self.turns.get(number, 0)):
            await asyncio.sleep(0)
        self.done[number] += 1
        return number


def together(work: Callable[[int], Awaitable[Any]]) -> Awaitable[list[Any]]:
    return asyncio.gather(*[work(number) for number in range(3)])


async def in_a_group(work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(awaited(work(number))) for number in range(3)]
    return [task.result() for task in begun]


async def one_at_a_time(work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return [await asyncio.wait_for(awaited(work(number)), 60) for number in range(3)]


@pytest.mark.parametrize("plain", [together, in_a_group, one_at_a_time])
async def test_tasks_of_asyncio_have_the_results_that_were_theirs(
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
    assert looking.done == {0: 1, 1: 1, 2: 1}


async def test_what_follows_in_the_order_of_ends_is_never_another_ones(runtime: Runtime) -> None:
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


async def test_a_foreign_task_repeats_no_effect_for_an_argument_that_is_never_the_same(
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
    """A flow that breaks after two steps, and others that began otherwise or end sooner."""
    breaking = Breaking()

    def made(body: Callable[[], Awaitable[str]]) -> Flow[[], str]:
        return flow(name="versioned")(body)

    @made
    async def before() -> str:
        said = await a() + await b()
        breaking()
        return said

    @made
    async def turned() -> str:
        return await b() + await a()

    @made
    async def shorter() -> str:
        return await a()

    @made
    async def longer() -> str:
        return await a() + await b() + await a(2)

    return before, {"turned": turned, "shorter": shorter, "longer": longer}


@pytest.mark.parametrize(
    ("change", "where"),
    [("turned", "step a is recorded where the flow now begins step b"), ("shorter", "step b")],
)
async def test_a_changed_flow_is_found_out_and_told_where(
    runtime: Runtime, change: str, where: str
) -> None:
    before, after = two_steps_and_others()
    await interrupted(runtime, before)
    with pytest.raises(FlowChanged, match=where):
        await runtime.resume(ID, after[change])
    assert (await runtime.resume(ID, before)).value == "a0b0"


@pytest.mark.parametrize(("change", "value"), [("turned", "b0a0"), ("shorter", "a0")])
async def test_a_changed_flow_goes_on_if_it_may(runtime: Runtime, change: str, value: str) -> None:
    before, after = two_steps_and_others()
    await interrupted(runtime, before)
    resumed = await runtime.resume(ID, after[change], allow_changed=True)
    assert resumed.value == value


async def test_a_flow_may_do_more_than_it_did(runtime: Runtime) -> None:
    before, after = two_steps_and_others()
    await interrupted(runtime, before)
    assert (await runtime.resume(ID, after["longer"])).value == "a0b0a2"


async def side_by_side() -> list[str]:
    return list(await gather(a(1), a(2), b()))


async def after_one() -> list[str]:
    return [await b(7), *await side_by_side()]


async def one_by_one() -> list[str]:
    return [await a(1), await a(2), await b()]


async def fewer() -> list[str]:
    return list(await gather(a(1), a(2)))


async def turned() -> list[str]:
    return list(await gather(a(2), a(1), b()))


async def longer_branches() -> list[str]:
    async def two() -> str:
        return await a(1) + await a(2)

    return list(await gather(two(), a(2), b()))


def versions(before: Any, after: Any) -> tuple[Flow[[], Any], Flow[[], Any]]:
    breaking = [True]

    def made(body: Callable[[], Awaitable[Any]]) -> Flow[[], Any]:
        async def whole() -> list[str]:
            came = await body()
            if breaking:
                breaking.clear()
                raise Boom("the process dies")
            return [*came, await b(9)]

        return flow(name="versioned")(whole)

    return made(before), made(after)


CHANGES = [
    (side_by_side, one_by_one, "value gather-3 is recorded where the flow now begins step a"),
    (one_by_one, side_by_side, "step a is recorded where the flow now begins value gather-3"),
    (side_by_side, fewer, "value gather-3 is recorded .* value gather-2"),
    (side_by_side, turned, "with other arguments"),
    (longer_branches, side_by_side, "is recorded where the flow now begins no further step"),
    (after_one, side_by_side, "step b is recorded where the flow now begins value gather-3"),
]


@pytest.mark.parametrize(("before", "after", "where"), CHANGES)
async def test_another_shape_is_found_out_before_anything_is_done_twice(
    runtime: Runtime, before: Any, after: Any, where: str
) -> None:
    old, new = versions(before, after)
    with pytest.raises(Boom):
        await runtime.run(old.options(run_id=ID))
    with pytest.raises(FlowChanged, match=where):
        await runtime.resume(ID, new)
    assert (await runtime.resume(ID, old)).value == [*await before_alone(before), "b9"]


@pytest.mark.parametrize(("before", "after", "where"), CHANGES)
async def test_another_shape_goes_on_if_it_may(
    runtime: Runtime, before: Any, after: Any, where: str
) -> None:
    old, new = versions(before, after)
    with pytest.raises(Boom):
        await runtime.run(old.options(run_id=ID))
    resumed = await runtime.resume(ID, new, allow_changed=True)
    assert resumed.value == [*await before_alone(after), "b9"]


async def before_alone(body: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """What it comes to in a run of its own."""
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


async def test_an_argument_that_comes_from_a_record_is_the_same_each_time(
    runtime: Runtime,
) -> None:
    """Whatever type it had before it was recorded."""
    breaking, used = Breaking(), list[Any]()

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
        said = await use(limit, at, now(), await score(), remaining())
        both = await asyncio.gather(in_a_task(1), in_a_task(2))
        breaking()
        return said, *both

    zone = ZoneInfo("Europe/Berlin")
    await interrupted(runtime, body, 30, datetime(2026, 7, 1, 12, tzinfo=zone))
    done = len(used)
    await runtime.resume(ID, body)
    assert len(used) == done == 3


class Client:
    """Shows what it has done so far."""

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


async def test_what_an_instance_or_a_client_has_done_meanwhile_is_no_other_argument(
    runtime: Runtime,
) -> None:
    breaking = Breaking()

    @flow
    async def body() -> int:
        agent, client = Agent(), Client()
        for _ in range(breaking.error is None):
            repr(client)
        total = await agent.act(client, 1) + await agent.act(client, 2)
        breaking()
        return total

    await interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == 3
