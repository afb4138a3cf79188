"""timeline() and past_runs(): the same of a result, a handle and a run's id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    DeadlineExceeded,
    Timeline,
    best_so_far,
    flow,
    gather,
    llm,
    past_runs,
    step,
    timeline,
    tool,
)
from orchestrator.testing import ScriptedEngine
from store.errors import RunAmbiguous, RunNotFound
from store.records import CallKind, Status
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    scripted_runtime,
    store_url,
    until_generating,
)


@tool(effects="pure")
async def look_up(word: str) -> str:
    return word.upper()


@step
async def section(word: str) -> str:
    return await llm(await look_up(word))


@flow(deadline="60s")
async def report(topic: str) -> str:
    plan = await llm(topic)
    return plan + "".join(await gather(section("a"), section("b")))


@flow(deadline=0.2, on_deadline="best_so_far")
async def hasty() -> str:
    best_so_far("draft")
    return await llm("too slow")


@flow(name="fails", deadline="60s")
async def failing() -> None:
    await section("x")
    raise ValueError("no luck")


def silent_engine() -> ScriptedEngine:
    return ScriptedEngine(answer_ok, token_s=NEVER_S)


def shape_of(drawn: Timeline) -> Any:
    """All but the times, which the store and the events take at slightly different moments."""
    return (
        drawn.run.status,
        drawn.run.deadline_s,
        [
            (each.node, each.kind, each.identity, each.stage, each.step_path, each.status)
            for each in drawn.calls
        ],
        sorted((each.path, each.name, each.status) for each in drawn.steps if each.kind == "step"),
    )


async def test_a_result_and_its_id_have_the_same_timeline(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(report, "tides")
    by_result = timeline(result)
    by_id = timeline(result.run_id, store=store_url(tmp_path))
    assert shape_of(by_result) == shape_of(by_id)
    assert [call.kind for call in by_result.calls].count(CallKind.TOOL) == 2
    assert len(by_result.calls) == 5
    assert shape_of(timeline(store=store_url(tmp_path))) == shape_of(by_id)  # the newest
    assert shape_of(timeline(result.run_id[:6], store=store_url(tmp_path))) == shape_of(by_id)


async def test_the_call_that_a_deadline_cut_off_is_in_the_timeline(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, silent_engine()) as runtime:
        result = await runtime.run(hasty)
    [call] = timeline(result).calls
    assert call.status is not Status.COMPLETED
    assert "cut off or failed" in timeline(result).svg


async def test_a_handle_has_a_timeline_while_its_run_goes_on_and_after_it_failed(
    tmp_path: Path,
) -> None:
    engine = silent_engine()
    async with scripted_runtime(tmp_path, engine) as runtime:
        handle = runtime.start(hasty.options(deadline=NEVER_S))
        assert "running" in handle._repr_html_()  # nothing has begun yet
        await until_generating(engine)
        during = timeline(handle)
        await handle.cancel()
    assert during.run.status is Status.RUNNING
    assert during.now_s is not None
    assert [call.status for call in during.calls] == [Status.RUNNING]
    assert timeline(handle).run.status is Status.CANCELLED

    async with scripted_runtime(tmp_path) as runtime:
        failed = runtime.start(failing)
        with pytest.raises(ValueError, match="no luck"):
            await failed
    assert "failed: ValueError" in failed._repr_html_()
    by_id = timeline(failed.id, store=store_url(tmp_path))
    assert shape_of(by_id) == shape_of(timeline(failed))


async def test_a_resumed_run_shows_what_was_done_before(tmp_path: Path) -> None:
    attempts = []

    @flow(name="twice", deadline="60s")
    async def twice() -> str:
        first = await section("a")
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")
        return first + await section("b")

    async with scripted_runtime(tmp_path) as runtime:
        handle = runtime.start(twice)
        with pytest.raises(ValueError, match="once"):
            await handle
        result = await runtime.resume(handle.id, twice)
    assert [step.name for step in timeline(result).steps if step.kind == "step"] == ["section"] * 2
    assert len(timeline(result).calls) == 4
    assert timeline(result).run.status is Status.COMPLETED


async def test_the_result_of_a_run_that_had_ended_before_has_its_timeline(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        first = await runtime.run(report.options(run_id="tides-1"), "tides")
        again = await runtime.run(report.options(run_id="tides-1"), "tides")
    assert again.value == first.value
    assert shape_of(timeline(again)) == shape_of(timeline(first))


async def test_it_works_while_an_event_loop_runs_and_without_one(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(report, "tides")
        here = timeline(result.run_id, store=store_url(tmp_path))
    there = await asyncio.to_thread(timeline, result.run_id, store=store_url(tmp_path))
    assert shape_of(here) == shape_of(there)


async def test_an_unknown_run_is_named_and_so_are_several(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        with pytest.raises(RunNotFound):
            timeline(store=store_url(tmp_path))
        await runtime.run(report.options(run_id="aa-1"), "tides")
        await runtime.run(report.options(run_id="aa-2"), "tides")
    with pytest.raises(RunNotFound, match="zz"):
        timeline("zz", store=store_url(tmp_path))
    with pytest.raises(RunAmbiguous):
        timeline("aa", store=store_url(tmp_path))


async def test_past_runs_has_a_pattern_for_each_completed_run(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for topic in ("tides", "moon"):
            await runtime.run(report, topic)
        with pytest.raises(ValueError, match="no luck"):
            await runtime.run(failing)
    known = past_runs("report", store=store_url(tmp_path))
    assert [len(pattern.stages) for pattern in known.patterns] == [3, 3]
    assert "2 patterns of 2 runs" in known._repr_html_()
    assert len(past_runs("fails", store=store_url(tmp_path))) == 0


async def test_a_run_that_failed_at_its_deadline_is_drawn(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, silent_engine()) as runtime:
        handle = runtime.start(report.options(deadline=0.1), "tides")
        with pytest.raises(DeadlineExceeded):
            await handle
    assert "deadline missed" in timeline(handle).svg
    assert repr(handle) == f"<RunHandle {handle.id}: failed>"


async def test_the_newest_run_of_an_empty_store_is_not_found(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(answer_ok)):
        pass
    with pytest.raises(RunNotFound, match="this store has no runs yet"):
        timeline(store=store_url(tmp_path))
