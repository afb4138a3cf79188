"""The events that listeners get; a listener that raises does not end a run."""

from __future__ import annotations

import logging
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args

import pytest

import orchestrator.events
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


async def test_a_listener_gets_all_events_in_the_order_in_which_they_are_recorded(
    tmp_path: Path,
) -> None:
    events: list[Event] = []

    async def body() -> None:
        await ask()
        await gather(ask(), ask())

    async with scripted_runtime(tmp_path, on_event=events.append) as runtime:
        result = await runtime.run(flow(name="f", deadline="1h")(body))
        record = await the_run(runtime.store)
    assert events[0] == RunStarted(result.run_id, "f", 3600.0)
    assert events[-1] == RunFinished(result.run_id, "completed", result.elapsed_s)
    started = {event.node: event for event in events if isinstance(event, CallStarted)}
    finished = {event.node: event for event in events if isinstance(event, CallFinished)}
    started_paths = [event.path for event in events if isinstance(event, StepStarted)]
    ended = {event.path: event for event in events if isinstance(event, StepFinished)}
    assert len(started_paths) == len(record.steps)
    assert set(started_paths) == set(ended) == set(record.steps)
    assert {event.status for event in ended.values()} == {"completed"}
    for call in record.calls:
        event, end = started[call.node], finished[call.node]
        assert events.index(event) < events.index(end)
        assert (event.kind, event.identity, event.stage) == ("llm", call.identity, call.stage)
        assert (event.at_s, event.sub_deadline_s) == (call.started_s, call.sub_deadline_s)
        assert event.sub_deadline_source == call.deadline_source == "fallback"
        assert event.predicted_output_tokens == call.length_bound
        assert (event.path, event.engine, event.model) == (call.step_path, "scripted", "script")
        assert (end.status, end.output_tokens, end.error_type) == ("completed", 3, None)
        assert (end.prompt_tokens, end.finish_reason) == (call.prompt_tokens, "stop")
        assert end.at_s == pytest.approx(call.finished_s, abs=0.5)


async def test_a_listener_gets_the_error_class_of_failed_steps_and_runs(tmp_path: Path) -> None:
    events: list[Event] = []
    async with scripted_runtime(tmp_path, on_event=events.append) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(fails))
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].status, events[-1].error_type) == ("failed", "Boom")
    assert isinstance(events[-2], StepFinished)
    assert (events[-2].path, events[-2].status) == ("fails", "failed")
    assert events[-2].error_type == "Boom"


@pytest.mark.parametrize(
    "kind", [RunStarted, StepStarted, CallStarted, CallFinished, StepFinished, RunFinished]
)
async def test_a_listener_that_raises_is_logged_once_and_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[Event]
) -> None:
    events: list[Event] = []

    def refuse(event: Event) -> None:
        events.append(event)
        if isinstance(event, kind):
            raise Boom("the display is broken")

    with caplog.at_level(logging.ERROR, "orchestrate"):
        async with scripted_runtime(tmp_path, on_event=refuse) as runtime:
            assert (await runtime.run(flow(ask))).value == "all is well"
            assert (await runtime.run(flow(ask))).value == "all is well"
            async with runtime.store.reading() as tx:
                statuses = [run.status for run in await tx.runs.newest()]
    assert statuses == [Status.COMPLETED] * 2
    assert isinstance(events[-1], kind)
    [log_record] = caplog.records
    assert "on_event" in log_record.getMessage()
    assert log_record.exc_info is not None
    assert log_record.exc_info[0] is Boom


async def test_a_listener_that_raises_does_not_affect_other_listeners(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []

    def refuse(_: Event) -> None:
        raise Boom

    with caplog.at_level(logging.ERROR, "orchestrate"):
        with_listeners = Runtime(runtime.engine, runtime.store, on_event=[refuse, events.append])
        await with_listeners.run(flow(ask))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert len(caplog.records) == 1


def test_the_public_module_lists_every_type_of_event() -> None:
    kinds = {kind.__name__ for kind in get_args(Event)}
    assert kinds == {
        "RunStarted",
        "StepStarted",
        "StepFinished",
        "InputRequired",
        "CallStarted",
        "CallFinished",
        "TextGenerated",
        "RunFinished",
    }
    assert set(orchestrator.events.__all__) == kinds | {"Event", "Listener"}
    assert all(is_dataclass(kind) for kind in get_args(Event))
