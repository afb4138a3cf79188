"""Questions that stop the run's clock: a person's time costs the deadline nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from orchestrator import (
    DeadlineExceeded,
    Flow,
    RunResult,
    Runtime,
    best_so_far,
    flow,
    gather,
    input_required,
    llm,
    remaining,
    step,
    within,
)
from orchestrator.clock import RunClock
from orchestrator.testing import ScriptedEngine, VirtualClock
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import answer_ok, recorded, scripted_runtime
from tests.unit.orchestrator.sdk.human_input_samples import ID, questions_of
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time, timed_runtime

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def seldom_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of polling twice a second takes seconds, even in virtual time."""
    monkeypatch.setattr("orchestrator.sdk.human_input.POLL_S", 60.0)
    monkeypatch.setattr("orchestrator.durability.leases.WATCH_S", 60.0)


@step
async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)


@flow(name="asks", deadline=10)
async def asks() -> str:
    await work(4)
    said = await input_required("well?", stops_clock=True)
    await work(5)
    return said


def answered_after(folder: Path, body: Flow[[], Any], wait_s: float) -> RunResult[Any]:
    async def run() -> RunResult[Any]:
        async with timed_runtime(folder) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            await questions_of(runtime.store)
            await asyncio.sleep(wait_s)
            await runtime.answer(ID, "yes")
            return await running

    return run_in_virtual_time(run())


def test_an_hour_costs_the_deadline_nothing(tmp_path: Path) -> None:
    result = answered_after(tmp_path, asks, HOUR_S)
    assert (result.value, result.in_time, result.deadline_s) == ("yes", True, 10)
    assert result.elapsed_s == pytest.approx(9, abs=0.1)


def test_without_it_the_hour_counts(tmp_path: Path) -> None:
    @flow(deadline=10)
    async def body() -> str:
        return await input_required("well?")

    with pytest.raises(DeadlineExceeded):
        answered_after(tmp_path, body, HOUR_S)


def test_the_time_before_and_after_still_counts(tmp_path: Path) -> None:
    @flow(deadline=10)
    async def body() -> None:
        await work(4)
        await input_required("well?", stops_clock=True)
        await work(7)

    with pytest.raises(DeadlineExceeded):
        answered_after(tmp_path, body, HOUR_S)


def test_the_time_left_is_the_same_before_and_after(tmp_path: Path) -> None:
    left: list[float] = []

    @flow(deadline=10)
    async def body() -> None:
        async with within(5):
            left.append(remaining())
            await input_required("well?", stops_clock=True)
            left.append(remaining())
            await asyncio.sleep(4)

    answered_after(tmp_path, body, HOUR_S)
    assert left[0] == pytest.approx(left[1], abs=0.1)


def test_a_limit_that_comes_after_the_answer_comes_on_time(tmp_path: Path) -> None:
    """The timer of the deadline is set before the clock stops, and must not be late after it."""

    @flow(deadline=10, on_deadline="best_so_far")
    async def body() -> str:
        best_so_far("best")
        await input_required("well?", stops_clock=True)
        await asyncio.sleep(HOUR_S)
        return "late"

    ended = answered_after(tmp_path, body, HOUR_S)
    assert ended.value == "best"
    assert ended.elapsed_s == pytest.approx(10, abs=0.2)


def test_the_time_of_two_questions_at_once_is_counted_once(tmp_path: Path) -> None:
    @flow(deadline=10)
    async def body() -> None:
        await gather(
            input_required("first?", stops_clock=True), input_required("second?", stops_clock=True)
        )
        await work(9)

    async def run() -> RunResult[None]:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            await questions_of(runtime.store, 2)
            for _ in range(2):
                await asyncio.sleep(HOUR_S)
                await runtime.answer(ID, "yes")
            return await running

    result = run_in_virtual_time(run())
    assert result.elapsed_s == pytest.approx(9, abs=0.1)


@pytest.mark.parametrize("how", ["killed", "cancelled", "cancelled when dead"])
@pytest.mark.parametrize("is_answered_before_the_resume", [True, False])
def test_killed_and_resumed_meanwhile_it_costs_nothing_either(
    tmp_path: Path, how: str, is_answered_before_the_resume: bool
) -> None:
    async def run() -> RunResult[str]:
        async with timed_runtime(tmp_path) as runtime:
            handle = runtime.start(asks.options(run_id=ID))
            [question] = await questions_of(runtime.store)
            await asyncio.sleep(HOUR_S)
            await handle.cancel()
            if how != "cancelled":  # as if the process had died instead
                await as_if_killed(runtime)
            if how == "cancelled when dead":
                await runtime.cancel(ID)
            await asyncio.sleep(HOUR_S)
            if is_answered_before_the_resume:
                await runtime.answer(ID, "yes")
                await asyncio.sleep(HOUR_S)
            resumed = asyncio.create_task(runtime.resume(ID, asks))
            if not is_answered_before_the_resume:
                await asyncio.sleep(HOUR_S)
                await runtime.answer(ID, "yes", question=question.path)
            result = await resumed
            row = (await recorded(runtime.store, ID)).run
            assert row.finished_at is not None
            total_s = (row.finished_at - row.started_at) / timedelta(seconds=1)
            assert row.elapsed_s == result.elapsed_s
            assert row.clock_stopped_s == pytest.approx(total_s - result.elapsed_s, abs=1e-3)
            return result

    async def as_if_killed(runtime: Runtime) -> None:
        async with runtime.store._writer.begin() as connection:
            for table in ("runs", "steps"):
                changes = "status = 'running', finished_s = NULL"
                if table == "runs":
                    changes = (
                        "status = 'running', finished_at = NULL, elapsed_s = NULL,"
                        " clock_stopped_s = 0"
                    )
                await connection.execute(
                    text(f"UPDATE {table} SET {changes} WHERE status = 'cancelled'")
                )

    result = run_in_virtual_time(run())
    assert (result.value, result.in_time) == ("yes", True)
    assert result.elapsed_s == pytest.approx(9, abs=0.5)


def test_a_question_that_a_limit_cut_off_stops_the_clock_no_longer(tmp_path: Path) -> None:
    """Another branch fails; the flow goes on, and its deadline comes."""

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError

    @flow(deadline=10)
    async def body() -> None:
        try:
            await gather(input_required("well?", stops_clock=True), fails())
        except ValueError:
            await asyncio.sleep(HOUR_S)

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(DeadlineExceeded):
                await runtime.run(body.options(run_id=ID))
            ended = (await recorded(runtime.store, ID)).run
            assert ended.status is Status.FAILED
            assert ended.elapsed_s == pytest.approx(10, abs=0.2)
            assert ended.clock_stopped_s == pytest.approx(1, abs=0.2)

    run_in_virtual_time(run())


@given(
    parts=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=10),
    stopped_s=st.integers(0, 1000),
)
def test_a_clock_counts_the_time_for_which_it_is_not_stopped(
    parts: list[tuple[bool, int]], stopped_s: int
) -> None:
    clock = VirtualClock()
    run_clock = RunClock(clock, stopped_s=stopped_s)
    began_s = run_clock.now_s()
    for stops, seconds in parts:
        if stops:
            with run_clock.stopped():
                at_s = run_clock.now_s()
                clock.advance(seconds / 2)
                with run_clock.stopped():
                    clock.advance(seconds / 2)
                assert run_clock.now_s() == at_s
                assert run_clock.is_stopped
        else:
            clock.advance(seconds)
    going = sum(seconds for stops, seconds in parts if not stops)
    assert run_clock.now_s() - began_s == going
    assert run_clock.stopped_s == stopped_s + sum(each for stops, each in parts if stops)
    assert not run_clock.is_stopped


def test_a_stopped_clock_shows_the_same_time_although_time_passes_between_two_looks() -> None:
    class Passing(VirtualClock):
        looks = 0

        def now_s(self) -> float:
            self.looks += 1
            self.advance(self.looks / 4)
            return super().now_s()

    run_clock = RunClock(Passing(), stopped_s=3)
    before_s = run_clock.now_s()
    with run_clock.stopped():
        first_s = run_clock.now_s()
        assert first_s >= before_s
        assert [run_clock.now_s() for _ in range(3)] == [first_s] * 3
    assert run_clock.now_s() >= first_s


@pytest.mark.parametrize("chats", [True, False])
def test_a_model_call_beside_a_question_has_the_time_that_the_question_took(
    tmp_path: Path, chats: bool
) -> None:
    from orchestrator.chat_model import ChatOrchestrate

    async def asks_a_person() -> str:
        return await input_required("well?", stops_clock=True)

    async def asks_a_model() -> str:
        return str((await ChatOrchestrate().ainvoke("x")).text) if chats else await llm("x")

    @flow(deadline=10)
    async def body() -> list[str]:
        return list(await gather(asks_a_person(), asks_a_model()))

    async def run() -> RunResult[list[str]]:
        engine = ScriptedEngine(answer_ok, token_s=20.0)  # twice the deadline for each word
        async with scripted_runtime(tmp_path, engine, clock=LoopClock()) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            await questions_of(runtime.store)
            await asyncio.sleep(HOUR_S)
            await runtime.answer(ID, "yes")
            return await running

    assert run_in_virtual_time(run()).value == ["yes", "all is well"]
