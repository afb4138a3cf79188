"""External effects with unknown outcomes: reconciled or reported, but never just repeated."""

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
from tests.unit.orchestrator.interrupted_runs import (
    Failing,
    RaiseOnce,
    die_during_step,
)
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import (
    never,
    result_of,
    run_in_virtual_time,
    timed_runtime,
)


@pytest.mark.parametrize("happened", [True, False, None])
async def test_an_external_effect_with_an_unknown_outcome_is_repeated_only_if_reconcile_says_so(
    runtime: Runtime, happened: bool | None
) -> None:
    sent: list[str] = []
    raise_once = RaiseOnce()

    async def look(to: str) -> Happened | None:
        return Happened(f"sent to {to}") if happened else None

    @tool(effects="external", reconcile=None if happened is None else look)
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    @flow
    async def mail() -> str:
        result = await send("Ulm")
        raise_once()
        return result

    await die_during_step(runtime, mail, "send")
    if happened is None:
        with pytest.raises(OutcomeUnknown, match="send"):
            await runtime.resume(ID, mail)
        assert sent == ["Ulm"]
        return
    assert (await runtime.resume(ID, mail)).value == "sent to Ulm"
    assert sent == (["Ulm"] if happened else ["Ulm", "Ulm"])


@pytest.mark.parametrize("effects", ["pure", "env"])
async def test_a_pure_or_env_effect_is_repeated(runtime: Runtime, effects: Any) -> None:
    done: list[str] = []
    raise_once = RaiseOnce()

    @tool(effects=effects)
    async def look(where: str) -> str:
        done.append(where)
        return where

    @flow
    async def search() -> str:
        result = await look("here")
        raise_once()
        return result

    await die_during_step(runtime, search, "look")
    assert (await runtime.resume(ID, search)).value == "here"
    assert done == ["here", "here"]


@pytest.mark.parametrize("happened", [True, False, None])
async def test_an_effect_that_raised_is_repeated_unless_reconcile_finds_that_it_happened(
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
    assert sending.num_calls == (1 if happened else 2)


@pytest.mark.parametrize("happened", [True, False, None])
async def test_a_retry_repeats_an_effect_that_raised_unless_reconcile_finds_that_it_happened(
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
    assert sending.num_calls == (1 if happened else 2)


def cut_off_by(way: str, send: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[Any]]:
    """Flows and steps in which a time limit cuts off an effect and the flow continues."""

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
def test_the_outcome_of_an_effect_that_was_cut_off_stays_unknown_on_resume(
    tmp_path: Path, way: str, *, dies: bool
) -> None:
    sent: list[str] = []
    raise_once = RaiseOnce()

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
            raise_once()
        return await send()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom if dies else OutcomeUnknown):
                await runtime.run(body.options(run_id=ID))
            with pytest.raises(OutcomeUnknown):
                await runtime.resume(ID, body)

    run_in_virtual_time(run())
    assert sent == ["mail"]


def test_an_effect_that_was_cut_off_is_unknown_even_if_the_tool_raises_another_error() -> None:
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
        result_of(body)
    assert sent == ["mail"]


async def test_each_of_two_equal_effects_that_were_cut_off_is_reconciled(runtime: Runtime) -> None:
    reconciled, sent, both = [], list[str](), asyncio.Event()

    async def look() -> Happened:
        reconciled.append("?")
        return Happened("found")

    @tool(reconcile=look)
    async def send() -> str:
        sent.append("mail")
        if len(sent) == 2:
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
    assert reconciled == ["?", "?"]


async def test_allow_changed_does_not_forget_an_effect_with_an_unknown_outcome(
    runtime: Runtime,
) -> None:
    sent: list[int] = []
    raise_once = RaiseOnce()

    @tool
    async def send(number: int) -> None:
        sent.append(number)

    @flow
    async def body() -> None:
        await send(len(sent))
        raise_once()

    await die_during_step(runtime, body, "send")
    with pytest.raises(OutcomeUnknown):
        await runtime.resume(ID, body, allow_changed=True)
    assert sent == [0]


@pytest.mark.parametrize("happened", [True, False, None])
def test_after_a_timeout_cut_off_an_effect_the_next_try_reconciles_it_or_fails(
    *, happened: bool | None
) -> None:
    sent: list[str] = []

    async def look(to: str) -> Happened | None:
        return Happened("found out") if happened else None

    @tool(reconcile=None if happened is None else look)
    async def send(to: str) -> str:
        sent.append(to)
        if len(sent) == 1:
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
            result_of(body)
    else:
        assert result_of(body).value == ("found out" if happened else "done again")
    assert sent == (["Ulm", "Ulm"] if happened is False else ["Ulm"])


def test_an_effect_with_an_unknown_outcome_is_not_repeated_by_another_step_either() -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> None:
        sent.append(to)
        await asyncio.sleep(60 if len(sent) == 1 else 0)

    @flow
    async def body() -> None:
        with pytest.raises(DeadlineExceeded):
            async with within("50ms"):
                await send("Ulm")
        await send("Bonn")  # a different effect
        await send("Ulm")

    with pytest.raises(OutcomeUnknown):
        result_of(body)
    assert sent == ["Ulm", "Bonn"]
