"""What a listener is told, and that a broken one ends no run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from orchestrator import flow, gather, step
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    StepStarted,
)
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import Boom, ask, scripted_runtime, the_run


@step
async def fails() -> None:
    await ask()
    raise Boom


async def test_a_listener_hears_of_everything_in_the_order_in_which_it_is_recorded(
    tmp_path: Path,
) -> None:
    heard: list[Event] = []

    async def body() -> None:
        await ask()
        await gather(ask(), ask())

    async with scripted_runtime(tmp_path, on_event=heard.append) as runtime:
        result = await runtime.run(flow(name="f", deadline="1h")(body))
        found = await the_run(runtime.store)
    assert heard[0] == RunStarted(result.run_id, "f", 3600.0)
    assert heard[-1] == RunFinished(result.run_id, "completed", result.elapsed_s)
    started = {event.node: event for event in heard if isinstance(event, CallStarted)}
    finished = {event.node: event for event in heard if isinstance(event, CallFinished)}
    assert {event.path for event in heard if isinstance(event, StepStarted)} == set(found.steps)
    for call in found.calls:
        begun, ended = started[call.node], finished[call.node]
        assert heard.index(begun) < heard.index(ended)
        assert (begun.kind, begun.identity, begun.stage) == ("llm", call.identity, call.stage)
        assert (begun.at_s, begun.sub_deadline_s) == (call.started_s, call.sub_deadline_s)
        assert (ended.status, ended.output_tokens) == ("completed", 3)
        assert ended.at_s == pytest.approx(call.finished_s, abs=0.5)


async def test_a_listener_hears_how_what_failed_ended(tmp_path: Path) -> None:
    heard: list[Event] = []
    async with scripted_runtime(tmp_path, on_event=heard.append) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(fails))
    assert isinstance(heard[-1], RunFinished)
    assert heard[-1].status == "failed"


@pytest.mark.parametrize("kind", [RunStarted, StepStarted, CallStarted, CallFinished, RunFinished])
async def test_a_listener_that_fails_is_logged_once_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[Event]
) -> None:
    heard: list[Event] = []

    def refuse(event: Event) -> None:
        heard.append(event)
        if isinstance(event, kind):
            raise Boom("the display is broken")

    with caplog.at_level(logging.ERROR, "orchestrate"):
        async with scripted_runtime(tmp_path, on_event=refuse) as runtime:
            assert (await runtime.run(flow(ask))).value == "all is well"
            assert (await runtime.run(flow(ask))).value == "all is well"
            async with runtime.store.reading() as tx:
                statuses = [run.status for run in await tx.runs.newest()]
    assert statuses == [Status.COMPLETED] * 2
    assert isinstance(heard[-1], kind)
    [complaint] = caplog.records
    assert "on_event" in complaint.getMessage()
    assert complaint.exc_info is not None
    assert complaint.exc_info[0] is Boom
