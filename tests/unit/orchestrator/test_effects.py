"""Effects of which nobody knows whether they happened: looked up or asked about, never repeated."""

from __future__ import annotations

import asyncio
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
from tests.unit.orchestrator.breaking_samples import Breaking, Failing, begin_and_die
from tests.unit.orchestrator.jumping_time import comes_to
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
