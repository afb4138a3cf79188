"""Which effects are uncertain: after a retry, a resume, a change of the flow, a hidden timeout."""

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
from tests.unit.orchestrator.interrupted_runs import (
    RaiseOnce,
    die_during_step,
    run_until_interrupted,
)
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import (
    VirtualTimeLoop,
    never,
    result_of,
    run_in_virtual_time,
    timed_runtime,
)


async def test_reconcile_may_call_tools_which_are_executed_anew_at_each_resume(
    runtime: Runtime,
) -> None:
    raise_once = [RaiseOnce(), RaiseOnce()]
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
        raise_once[0]()
        return "sent"

    @flow
    async def body() -> str:
        result = await send()
        raise_once[1]()
        return result

    for _ in range(2):
        await run_until_interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == "sent"
    assert (len(sent), len(looked)) == (2, 1)


def test_an_effect_cut_off_in_a_tool_that_raises_another_error_stays_unknown_on_resume(
    tmp_path: Path,
) -> None:
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

    run_in_virtual_time(run())
    assert sent == ["mail"]


async def test_an_effect_with_a_result_that_cannot_be_recorded_counts_as_happened(
    runtime: Runtime,
) -> None:
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


async def test_a_reconciled_result_counts_only_once_it_is_recorded(runtime: Runtime) -> None:
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


async def test_an_effect_that_a_retry_completed_is_not_uncertain_any_more(
    runtime: Runtime,
) -> None:
    sent, raise_once = list[str](), RaiseOnce()

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
        raise_once()
        return first, await trying()

    await run_until_interrupted(runtime, body)
    assert (await runtime.resume(ID, body)).value == ("sent", "sent")
    assert len(sent) == 3


async def test_an_effect_that_a_changed_flow_has_moved_stays_unknown(
    runtime: Runtime,
) -> None:
    sent: list[str] = []
    raise_once = RaiseOnce()

    @tool
    async def send() -> None:
        sent.append("mail")

    @step
    async def new() -> None:
        raise Boom("again")

    @flow(name="changing")
    async def before() -> None:
        await send()
        raise_once()

    @flow(name="changing")
    async def after() -> None:
        await new()
        await send()

    @flow(name="changing")
    async def fixed() -> None:
        await step(name="new")(asyncio.sleep)(0)
        await send()

    await die_during_step(runtime, before, "send")
    with pytest.raises(Boom):
        await runtime.resume(ID, after, allow_changed=True)
    with pytest.raises(OutcomeUnknown):
        await runtime.resume(ID, fixed, allow_changed=True)
    assert sent == ["mail"]


def block(seconds: float) -> None:
    """Let virtual time pass without a turn of the event loop, like blocking code."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._virtual_time.waited_s += seconds


def test_an_effect_that_did_not_begin_because_its_deadline_had_passed_is_not_uncertain() -> None:
    sent: list[str] = []

    @tool
    async def send() -> None:
        sent.append("mail")

    @flow
    async def body() -> None:
        with suppress(DeadlineExceeded):
            async with within(5):
                block(6)
                await send()
        await send()

    result_of(body)
    assert sent == ["mail"]


async def test_positional_keyword_and_default_arguments_make_the_same_effect(
    runtime: Runtime,
) -> None:
    sent, started = list[str](), asyncio.Event()

    @tool
    async def send(to: str, copies: int = 1) -> None:
        sent.append(to)
        started.set()
        await never()

    @flow
    async def body() -> None:
        task = asyncio.create_task(send("Ulm"))
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for repeat in (lambda: send(to="Ulm"), lambda: send("Ulm", copies=1)):
            with pytest.raises(OutcomeUnknown):
                await repeat()

    await runtime.run(body)
    assert sent == ["Ulm"]
