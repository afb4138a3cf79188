"""What a listener is told, and that a broken one ends no run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, gather, step
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    StepFinished,
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
    begun = [event.path for event in heard if isinstance(event, StepStarted)]
    ended = {event.path: event for event in heard if isinstance(event, StepFinished)}
    assert len(begun) == len(found.steps)
    assert set(begun) == set(ended) == set(found.steps)
    assert {event.status for event in ended.values()} == {"completed"}
    for call in found.calls:
        event, end = started[call.node], finished[call.node]
        assert heard.index(event) < heard.index(end)
        assert (event.kind, event.identity, event.stage) == ("llm", call.identity, call.stage)
        assert (event.at_s, event.sub_deadline_s) == (call.started_s, call.sub_deadline_s)
        assert event.sub_deadline_source == call.deadline_source == "fallback"
        assert event.predicted_output_tokens == call.length_bound
        assert (event.path, event.engine, event.model) == (call.step_path, "scripted", "script")
        assert (end.status, end.output_tokens, end.error_type) == ("completed", 3, None)
        assert (end.prompt_tokens, end.finish_reason) == (call.prompt_tokens, "stop")
        assert end.at_s == pytest.approx(call.finished_s, abs=0.5)


async def test_a_listener_hears_how_what_failed_ended(tmp_path: Path) -> None:
    heard: list[Event] = []
    async with scripted_runtime(tmp_path, on_event=heard.append) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(fails))
    assert isinstance(heard[-1], RunFinished)
    assert (heard[-1].status, heard[-1].error_type) == ("failed", "Boom")
    assert isinstance(heard[-2], StepFinished)
    assert (heard[-2].path, heard[-2].status) == ("fails", "failed")
    assert heard[-2].error_type == "Boom"


@pytest.mark.parametrize(
    "kind", [RunStarted, StepStarted, CallStarted, CallFinished, StepFinished, RunFinished]
)
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


async def test_a_listener_that_fails_leaves_the_others_listening(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []

    def refuse(_: Event) -> None:
        raise Boom

    with caplog.at_level(logging.ERROR, "orchestrate"):
        several = Runtime(runtime.engine, runtime.store, on_event=[refuse, heard.append])
        await several.run(flow(ask))
    assert isinstance(heard[0], RunStarted)
    assert isinstance(heard[-1], RunFinished)
    assert len(caplog.records) == 1
