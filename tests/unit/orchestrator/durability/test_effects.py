"""Effects of which nobody knows whether they happened: looked up or asked about, never repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    DeadlineExceeded,
    Happened,
    OutcomeUnknown,
    Runtime,
    flow,
    step,
    tool,
    within,
)
from tests.unit.orchestrator.breaking_samples import (
    Breaking,
    Failing,
    begin_and_die,
)
from tests.unit.orchestrator.jumping_time import (
    comes_to,
    in_jumping_time,
    never,
    timed_runtime,
)
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID


@pytest.mark.parametrize("happened", [True, False, None])
async def test_an_external_effect_of_unknown_outcome_is_never_repeated_blindly(
    runtime: Runtime, happened: bool | None
) -> None:
    sent: list[str] = []
    breaking = Breaking()

    async def look(to: str) -> Happened | None:
        return Happened(f"sent to {to}") if happened else None

    @tool(effects="external", reconcile=None if happened is None else look)
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    @flow
    async def mail() -> str:
        said = await send("Ulm")
        breaking()
        return said

    await begin_and_die(runtime, mail, "send")
    if happened is None:
        with pytest.raises(OutcomeUnknown, match="send"):
            await runtime.resume(ID, mail)
        assert sent == ["Ulm"]
        return
    assert (await runtime.resume(ID, mail)).value == "sent to Ulm"
    assert sent == (["Ulm"] if happened else ["Ulm", "Ulm"])


@pytest.mark.parametrize("effects", ["pure", "env"])
async def test_an_effect_that_does_no_harm_is_done_again(runtime: Runtime, effects: Any) -> None:
    done: list[str] = []
    breaking = Breaking()

    @tool(effects=effects)
    async def look(where: str) -> str:
        done.append(where)
        return where

    @flow
    async def search() -> str:
        said = await look("here")
        breaking()
        return said

    await begin_and_die(runtime, search, "look")
    assert (await runtime.resume(ID, search)).value == "here"
    assert done == ["here", "here"]


@pytest.mark.parametrize("happened", [True, False, None])
async def test_an_effect_that_failed_by_itself_is_done_again_unless_somebody_finds_out(
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
    assert (await runtime.resume(ID, body)).value == (7 if happened else 2)
    assert sending.done == (1 if happened else 2)


@pytest.mark.parametrize("happened", [True, False, None])
async def test_a_retry_repeats_an_effect_that_failed_unless_somebody_finds_out(
    runtime: Runtime, *, happened: bool | None
) -> None:
    sending = Failing(1)

    async def look() -> Happened | None:
        return Happened(7) if happened else None

    @tool(reconcile=None if happened is None else look)
    async def send() -> int:
        return sending()

    @step(retries=1)
    async def trying() -> int:
        return await send()

    assert (await runtime.run(flow(trying))).value == (7 if happened else 2)
    assert sending.done == (1 if happened else 2)


def cut_off_by(way: str, send: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[Any]]:
    """Ways in which a flow goes on after an effect was cut off."""

    async def within_a_block() -> None:
        async with within(5):
            await send()

    @step
    async def swallowing() -> None:
        with suppress(DeadlineExceeded):
            await within_a_block()

    @flow(deadline=5)
    async def nested() -> None:
        await send()

    ways = {
        "within": within_a_block,
        "timeout": step(timeout=5)(send),
        "swallowed": swallowing,
        "nested": nested,
    }
    return ways[way]


@pytest.mark.parametrize("way", ["within", "timeout", "swallowed", "nested"])
@pytest.mark.parametrize("dies", [True, False])
def test_what_was_cut_off_stays_unknown_when_the_run_is_resumed(
    tmp_path: Path, way: str, *, dies: bool
) -> None:
    sent: list[str] = []
    breaking = Breaking()

    @tool
    async def send() -> str:
        sent.append("mail")
        if len(sent) == 1:
            await never()
        return "sent"

    first = cut_off_by(way, send)

    @flow
    async def body() -> str:
        with suppress(DeadlineExceeded):
            await first()
        if dies:
            breaking()
        return await send()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom if dies else OutcomeUnknown):
                await runtime.run(body.options(run_id=ID))
            with pytest.raises(OutcomeUnknown):
                await runtime.resume(ID, body)

    in_jumping_time(run())
    assert sent == ["mail"]


def test_a_tool_that_hides_that_it_was_cut_off_is_not_believed() -> None:
    sent: list[str] = []

    @tool
    async def send() -> str:
        sent.append("mail")
        try:
            await never()
        except asyncio.CancelledError:
            raise ConnectionError("gone") from None
        return "sent"

    @flow
    async def body() -> None:
        with suppress(DeadlineExceeded, ConnectionError):
            async with within(5):
                await send()
        await send()

    with pytest.raises(OutcomeUnknown):
        comes_to(body)
    assert sent == ["mail"]


async def test_of_two_like_effects_that_were_cut_off_each_is_asked_about(runtime: Runtime) -> None:
    asked, begun, both = [], list[str](), asyncio.Event()

    async def look() -> Happened:
        asked.append("?")
        return Happened("found")

    @tool(reconcile=look)
    async def send() -> str:
        begun.append("mail")
        if len(begun) == 2:
            both.set()
        await never()
        return "sent"

    @flow
    async def body() -> tuple[str, ...]:
        tasks = [asyncio.create_task(send()) for _ in range(2)]
        await both.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await send(), await send()

    assert (await runtime.run(body)).value == ("found", "found")
    assert asked == ["?", "?"]


async def test_what_may_be_forgotten_of_a_changed_flow_is_no_effect_of_unknown_outcome(
    runtime: Runtime,
) -> None:
    sent: list[int] = []
    breaking = Breaking()

    @tool
    async def send(number: int) -> None:
        sent.append(number)

    @flow
    async def body() -> None:
        await send(len(sent))
        breaking()

    await begin_and_die(runtime, body, "send")
    with pytest.raises(OutcomeUnknown):
        await runtime.resume(ID, body, allow_changed=True)
    assert sent == [0]


@pytest.mark.parametrize("happened", [True, False, None])
def test_a_try_that_cut_an_effect_off_is_not_followed_by_a_blind_one(
    *, happened: bool | None
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
            comes_to(body)
    else:
        assert comes_to(body).value == ("found out" if happened else "done again")
    assert begun == (["Ulm", "Ulm"] if happened is False else ["Ulm"])


def test_an_effect_of_unknown_outcome_is_not_done_by_another_step_either() -> None:
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
        comes_to(body)
    assert begun == ["Ulm", "Bonn"]
