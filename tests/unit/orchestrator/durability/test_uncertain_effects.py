"""Which effects are unsure: after a retry, a resume, a change of the flow, a hidden end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator import (
    DeadlineExceeded,
    Happened,
    OutcomeUnknown,
    ResultNotSerialisable,
    Runtime,
    flow,
    step,
    tool,
    within,
)
from tests.unit.orchestrator.breaking_samples import (
    Breaking,
    begin_and_die,
    interrupted,
)
from tests.unit.orchestrator.jumping_time import (
    JumpingLoop,
    comes_to,
    in_jumping_time,
    never,
    timed_runtime,
)
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID


async def test_who_finds_out_may_use_tools_and_asks_anew_each_time(runtime: Runtime) -> None:
    breaking = [Breaking(), Breaking()]
    sent, looked = list[str](), list[str]()

    @tool(effects="pure")
    async def lookup() -> int:
        looked.append("?")
        return len(sent)

    async def look() -> Happened | None:
        return Happened("found") if await lookup() > 1 else None

    @tool(reconcile=look)
    async def send() -> str:
        sent.append("mail")
        breaking[0]()
        return "sent"

    @flow
    async def body() -> str:
        said = await send()
        breaking[1]()
        return said

    for _ in range(2):
        await interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == "sent"
    assert (len(sent), len(looked)) == (2, 1)


def test_a_hidden_cut_off_stays_unknown_when_the_run_is_resumed(tmp_path: Path) -> None:
    sent: list[str] = []

    @tool
    async def send() -> str:
        sent.append("mail")
        try:
            await (never() if len(sent) == 1 else asyncio.sleep(0))
        except asyncio.CancelledError as error:
            raise ConnectionError("gone") from error
        return "sent"

    @step(timeout=5, retries=2)
    async def trying() -> str:
        return await send()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            for attempt in (runtime.run, runtime.run, runtime.run):
                with pytest.raises(OutcomeUnknown):
                    await attempt(flow(trying).options(run_id=ID))

    in_jumping_time(run())
    assert sent == ["mail"]


async def test_what_a_tool_gave_and_no_record_can_keep_has_happened(runtime: Runtime) -> None:
    paid: list[int] = []

    @tool
    async def pay():  # type: ignore[no-untyped-def]
        paid.append(1)
        return (1, 2)

    @flow
    async def body() -> None:
        await pay()

    with pytest.raises(ResultNotSerialisable):
        await runtime.run(body.options(run_id=ID))
    with pytest.raises(OutcomeUnknown):
        await runtime.resume(ID, body)
    assert paid == [1]


async def test_what_was_found_out_counts_once_it_is_recorded(runtime: Runtime) -> None:
    sent: list[str] = []

    async def look() -> Happened:
        return Happened(object())

    @tool(reconcile=look)
    async def send() -> str:
        sent.append("mail")
        raise Boom("it says so")

    @flow
    async def body() -> None:
        with suppress(Boom):
            await send()
        for _ in range(2):
            with pytest.raises(ResultNotSerialisable):
                await send()

    await runtime.run(body)
    assert sent == ["mail"]


async def test_an_effect_that_a_retry_has_made_good_is_not_unsure_any_more(
    runtime: Runtime,
) -> None:
    sent, breaking = list[str](), Breaking()

    async def look() -> Happened | None:
        return Happened("found") if len(sent) > 1 else None

    @tool(reconcile=look)
    async def send() -> str:
        sent.append("mail")
        if len(sent) == 1:
            raise Boom("refused")
        return "sent"

    trying = step(retries=1)(send)

    @flow
    async def body() -> tuple[str, str]:
        first = await trying()
        breaking()
        return first, await trying()

    await interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == ("sent", "sent")
    assert len(sent) == 3


async def test_an_effect_that_a_changed_flow_has_put_elsewhere_stays_unknown(
    runtime: Runtime,
) -> None:
    sent: list[str] = []
    breaking = Breaking()

    @tool
    async def send() -> None:
        sent.append("mail")

    @step
    async def new() -> None:
        raise Boom("again")

    @flow(name="changing")
    async def before() -> None:
        await send()
        breaking()

    @flow(name="changing")
    async def after() -> None:
        await new()
        await send()

    @flow(name="changing")
    async def mended() -> None:
        await step(name="new")(asyncio.sleep)(0)
        await send()

    await begin_and_die(runtime, before, "send")
    with pytest.raises(Boom):
        await runtime.resume(ID, after, allow_changed=True)
    with pytest.raises(OutcomeUnknown):
        await runtime.resume(ID, mended, allow_changed=True)
    assert sent == ["mail"]


def pass_without_a_wait(seconds: float) -> None:
    """As code does that keeps its loop to itself."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop._jumping.waited_s += seconds


def test_what_the_deadline_kept_from_beginning_is_not_unknown() -> None:
    sent: list[str] = []

    @tool
    async def send() -> None:
        sent.append("mail")

    @flow
    async def body() -> None:
        with suppress(DeadlineExceeded):
            async with within(5):
                pass_without_a_wait(6)
                await send()
        await send()

    comes_to(body)
    assert sent == ["mail"]


async def test_an_argument_is_the_same_however_it_is_given(runtime: Runtime) -> None:
    sent, begun = list[str](), asyncio.Event()

    @tool
    async def send(to: str, copies: int = 1) -> None:
        sent.append(to)
        begun.set()
        await never()

    @flow
    async def body() -> None:
        task = asyncio.create_task(send("Ulm"))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for again in (lambda: send(to="Ulm"), lambda: send("Ulm", copies=1)):
            with pytest.raises(OutcomeUnknown):
                await again()

    await runtime.run(body)
    assert sent == ["Ulm"]
