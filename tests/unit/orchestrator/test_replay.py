"""What a step is known by on resume: where it stands, what it was called with, how it ended."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    DeadlineExceeded,
    Flow,
    FlowChanged,
    Happened,
    OutcomeUnknown,
    Runtime,
    flow,
    gather,
    now,
    step,
    tool,
    within,
)
from orchestrator.digests import digest_of
from tests.unit.orchestrator.orchestrator_samples import Boom, recorded

ID = "the-run"


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
        begun = [tasks.create_task(_done(work(number))) for number in range(3)]
    return [task.result() for task in begun]


async def one_at_a_time(work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return [await asyncio.wait_for(_done(work(number)), 60) for number in range(3)]


async def _done(work: Awaitable[Any]) -> Any:
    return await work


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
    (side_by_side, one_by_one, "value gather-3 is recorded where the flow now comes to step a"),
    (one_by_one, side_by_side, "step a is recorded where the flow now comes to value gather-3"),
    (side_by_side, fewer, "value gather-3 is recorded .* value gather-2"),
    (side_by_side, turned, "with other arguments"),
    (longer_branches, side_by_side, "is recorded where the flow now comes to nothing more"),
    (after_one, side_by_side, "step b is recorded where the flow now comes to value gather-3"),
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


class Failing:
    """Fails so many times, and counts."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.done = 0

    def __call__(self) -> int:
        self.done += 1
        if self.done <= self.times:
            raise Boom("no")
        return self.done


async def test_an_error_that_was_caught_is_not_tried_again_for_one_like_it(
    runtime: Runtime,
) -> None:
    caught, ending = Failing(1), Failing(1)

    @step
    async def optional() -> int:
        return caught()

    @step
    async def needed() -> int:
        return ending()

    @flow
    async def body() -> int:
        try:
            await optional()
        except Boom:
            return await needed()
        return 0

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    assert (await runtime.resume(ID, body)).value == 2
    assert (caught.done, ending.done) == (1, 2)


async def from_another(work: Awaitable[int]) -> int:
    try:
        return await work
    except Boom as error:
        raise RuntimeError("wrapped") from error


async def while_handling(work: Awaitable[int]) -> int:
    try:
        return await work
    except Boom:
        raise RuntimeError("wrapped")  # noqa: B904 - as people write it


async def in_one_group(work: Awaitable[int]) -> int:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_done(work))
    result: int = task.result()
    return result


@pytest.mark.parametrize("wrapped", [from_another, while_handling, in_one_group])
@pytest.mark.parametrize("inside_a_step", [True, False])
async def test_what_made_the_error_that_ended_a_run_is_tried_again(
    runtime: Runtime, wrapped: Callable[[Awaitable[int]], Awaitable[int]], *, inside_a_step: bool
) -> None:
    failing = Failing(1)

    @step
    async def fragile() -> int:
        return failing()

    async def work() -> int:
        return await wrapped(fragile())

    @flow
    async def body() -> int:
        return await (step(work)() if inside_a_step else work())

    with pytest.raises((RuntimeError, ExceptionGroup)):
        await runtime.run(body.options(run_id=ID))
    assert (await runtime.resume(ID, body)).value == 2


@pytest.mark.parametrize("happened", [True, False, None])
async def test_an_effect_that_failed_and_ended_its_run_is_asked_about(
    runtime: Runtime, *, happened: bool | None
) -> None:
    sending = Failing(1)

    async def look() -> Happened | None:
        return Happened(7) if happened else None

    @tool(reconcile=None if happened is None else look)
    async def send() -> int:
        return sending()

    @flow
    async def body() -> int:
        return await send()

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    if happened is None:
        with pytest.raises(OutcomeUnknown, match="send"):
            await runtime.resume(ID, body)
    else:
        assert (await runtime.resume(ID, body)).value == (7 if happened else 2)
    assert sending.done == (2 if happened is False else 1)


@pytest.mark.parametrize("happened", [True, False, None])
async def test_a_try_that_cut_an_effect_off_is_not_followed_by_a_blind_one(
    runtime: Runtime, *, happened: bool | None
) -> None:
    begun: list[str] = []

    async def look(to: str) -> Happened | None:
        return Happened("found out") if happened else None

    @tool(reconcile=None if happened is None else look)
    async def send(to: str) -> str:
        begun.append(to)
        if len(begun) == 1:
            await asyncio.sleep(60)
        return "done again"

    @step(retries=1, timeout="50ms")
    async def trying() -> str:
        return await send("Ulm")

    @flow
    async def body() -> str:
        return await trying()

    if happened is None:
        with pytest.raises(OutcomeUnknown, match="trying/send"):
            await runtime.run(body)
    else:
        assert (await runtime.run(body)).value == ("found out" if happened else "done again")
    assert begun == (["Ulm", "Ulm"] if happened is False else ["Ulm"])


async def test_an_effect_of_unknown_outcome_is_not_done_by_another_step_either(
    runtime: Runtime,
) -> None:
    begun: list[str] = []

    @tool
    async def send(to: str) -> None:
        begun.append(to)
        await asyncio.sleep(60 if len(begun) == 1 else 0)

    @flow
    async def body() -> None:
        with pytest.raises(DeadlineExceeded):
            async with within("50ms"):
                await send("Ulm")
        await send("Bonn")  # another one
        await send("Ulm")

    with pytest.raises(OutcomeUnknown):
        await runtime.run(body)
    assert begun == ["Ulm", "Bonn"]


class Local:
    class Refused(Exception):
        def __init__(self, code: int, *, hint: str) -> None:
            super().__init__(f"refused with {code}")
            self.code, self.hint = code, hint


def refused() -> None:
    raise Local.Refused(7, hint="later")


Local.Refused.__module__ = __name__


@pytest.mark.parametrize(
    ("failing", "kind", "told"),
    [
        (lambda: json.loads("{"), json.JSONDecodeError, "line 1 column 2"),
        (Path("/nowhere/at/all").read_text, FileNotFoundError, "/nowhere/at/all"),
        (lambda: {}["key"], KeyError, "key"),
        (refused, Local.Refused, "refused with 7"),
        (lambda: int("x"), ValueError, "invalid literal"),
    ],
)
async def test_a_caught_error_is_of_its_class_again(
    runtime: Runtime, failing: Callable[[], Any], kind: type[Exception], told: str
) -> None:
    caught: list[Exception] = []

    @step
    async def fragile() -> None:
        failing()

    @flow
    async def body() -> None:
        try:
            await fragile()
        except kind as error:
            caught.append(error)
        if len(caught) == 1:
            raise Boom("the process dies")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    await runtime.resume(ID, body)
    first, second = caught
    assert told in str(second)
    assert type(second) is type(first)
    plain = (str, int, type(None))
    held = {name: each for name, each in vars(first).items() if type(each) in plain}
    assert vars(second).items() >= held.items()


async def test_a_step_is_recorded_with_a_digest_of_its_arguments(runtime: Runtime) -> None:
    @flow(name="digests")
    async def body() -> None:
        await gather(a(1), a(1), a(2))

    run = await runtime.run(body)
    steps = (await recorded(runtime.store, run.run_id)).steps
    one, same, other = (steps[f"a[{number}]"].arguments for number in range(3))
    assert one == same == digest_of((1,), {})
    assert one != other
