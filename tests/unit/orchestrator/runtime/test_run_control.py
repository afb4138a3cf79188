"""Runs are listed, read, answered and cancelled from Python, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import orchestrator.runtime.runtime
from orchestrator import (
    AnswerRefused,
    DeadlineExceeded,
    NoOpenQuestion,
    RunAlreadyEnded,
    RunCancelled,
    RunHandle,
    Runtime,
    flow,
    input_required,
    step,
)
from orchestrator.durability.leases import WATCH_S
from orchestrator.runtime.run_control import RunControl, RunStatus
from orchestrator.sdk.human_input import POLL_S
from store.errors import RunNotFound
from store.records import Status
from store.session import open_store
from tests.unit.orchestrator.orchestrator_samples import Boom, recorded, store_url
from tests.unit.orchestrator.run_samples import ID, a_run, add
from tests.unit.orchestrator.sdk.human_input_samples import questions_of
from tests.unit.orchestrator.virtual_time import never, run_in_virtual_time, timed_runtime

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ELSEWHERE: dict[str, Any] = {"host": "another"}
GONE: dict[str, Any] = {"host": "another", "leased_until": LONG_AGO}


@dataclass(frozen=True)
class Order:
    item: str
    pieces: int


@flow
async def buy() -> Order:
    return await input_required("what?", schema=Order)


@flow
async def endless() -> None:
    await never()


def in_virtual_time(folder: Path, work: Callable[[Runtime], Awaitable[None]]) -> None:
    async def run() -> None:
        async with timed_runtime(folder) as runtime:
            await work(runtime)

    run_in_virtual_time(run())


async def started(runtime: Runtime, body: Any) -> RunHandle[Any]:
    """A run of this process with the id `ID`, once it is recorded."""
    handle: RunHandle[Any] = runtime.start(body.options(run_id=ID))
    while True:
        try:
            await runtime.get(ID)
        except RunNotFound:
            await asyncio.sleep(0.001)
        else:
            return handle


async def interrupted_question(runtime: Runtime, body: Any = buy) -> None:
    """A run that asked its question, and was cancelled then."""
    handle = await started(runtime, body)
    await questions_of(runtime.store)
    await runtime.cancel(ID)
    with pytest.raises(RunCancelled):
        await handle


def test_runs_are_listed_newest_first_and_by_what_is_given(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        for number, (name, user, state) in enumerate(
            [("a", "ann", {}), ("b", "ben", GONE), ("a", "ben", {"status": Status.FAILED})]
        ):
            record = a_run(started_at=LONG_AGO + timedelta(days=number), slo_user=user, **ELSEWHERE)
            fields = {each: getattr(record, each) for each in record.__dataclass_fields__}
            async with runtime.store.transaction() as tx:
                changes = {"id": f"r{number}", "flow": name, **state}
                await tx.runs.add(type(record)(**fields | changes))

        async def ids(**filters: Any) -> list[str]:
            return [run.id for run in await runtime.runs(**filters)]

        assert await ids() == ["r2", "r1", "r0"]
        assert await ids(limit=2) == ["r2", "r1"]
        assert await ids(flow="a") == ["r2", "r0"]
        assert await ids(user="ben") == ["r2", "r1"]
        assert await ids(user="ben", flow="a") == ["r2"]
        by_status: dict[RunStatus, list[str]] = {
            "running": ["r0"],
            "orphaned": ["r1"],
            "failed": ["r2"],
            "cancelled": [],
        }
        for status, expected in by_status.items():
            assert await ids(status=status) == expected
            assert [(await runtime.get(each)).status for each in expected] == [status] * len(
                expected
            )
        with pytest.raises(ValueError, match="must be one of: running"):
            await ids(status="lost")
        with pytest.raises(ValueError, match="limit=-1"):
            await ids(limit=-1)

    in_virtual_time(tmp_path, work)


def test_a_run_is_read_with_its_times_its_error_and_its_questions(tmp_path: Path) -> None:
    @flow(name="fails", deadline=60)
    async def fails() -> None:
        await asyncio.sleep(2)
        raise Boom("no")

    async def work(runtime: Runtime) -> None:
        with pytest.raises(Boom):
            await runtime.run(fails.options(run_id="failed", user="ann"))
        failed = await runtime.get("failed")
        assert (failed.flow, failed.status, failed.user) == ("fails", "failed", "ann")
        assert (failed.deadline_s, failed.elapsed_s, failed.error) == (60.0, 2.0, "Boom")
        assert failed.ended_at is not None
        assert (failed.ended_at - failed.started_at).total_seconds() == 2.0
        assert failed.questions == ()

        await started(runtime, buy)
        await questions_of(runtime.store)
        [asking] = await runtime.runs(status="running")
        assert (asking.id, asking.ended_at, asking.error) == (ID, None, None)
        [question] = asking.questions
        assert (question.path, question.text) == ("input", "what?")
        assert question.schema is not None
        assert set(question.schema["properties"]) == {"item", "pieces"}
        assert await runtime.get(ID) == asking
        with pytest.raises(RunNotFound):
            await runtime.get("another")

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize("value", [Order("pen", 3), {"item": "pen", "pieces": 3}])
def test_an_answer_from_python_reaches_the_flow_with_its_type(
    tmp_path: Path, value: object
) -> None:
    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, buy)
        await questions_of(runtime.store)
        answered = await runtime.answer(ID, value)
        assert (answered.path, answered.text) == ("input", "what?")
        assert (await handle).value == Order("pen", 3)
        with pytest.raises(NoOpenQuestion, match="has ended"):
            await runtime.answer(ID, value)

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a pen", "is not of type 'object'"),
        ({"item": "pen"}, "'pieces' is a required property"),
        ({"item": "pen", "pieces": "many"}, "pieces: 'many' is not of type 'integer'"),
        (object(), "Unable to serialize"),
        ("\udce9", "UTF-8"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    tmp_path: Path, value: object, reason: str
) -> None:
    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, buy)
        await questions_of(runtime.store)
        with pytest.raises(AnswerRefused, match=reason):
            await runtime.answer(ID, value)
        await asyncio.sleep(2 * POLL_S)
        assert len((await runtime.get(ID)).questions) == 1
        await runtime.answer(ID, '{"item": "pen", "pieces": 1}')
        assert (await handle).value == Order("pen", 1)

    in_virtual_time(tmp_path, work)


def test_an_answer_is_replaced_until_the_flow_has_read_it(tmp_path: Path) -> None:
    @flow
    async def twice() -> list[int]:
        first = await input_required("first?", schema=int)
        return [first, await input_required("second?", schema=int)]

    async def work(runtime: Runtime) -> None:
        await interrupted_question(runtime, twice)
        for hasty in (1, 2, 3):
            assert (await runtime.answer(ID, hasty)).path == "input"
            assert (await runtime.get(ID)).questions == ()
        resumed = asyncio.create_task(runtime.resume(ID, twice))
        await questions_of(runtime.store, 2)
        with pytest.raises(NoOpenQuestion, match="no open question at input;"):
            await runtime.answer(ID, 9, question="input")
        await runtime.answer(ID, 4)
        assert (await resumed).value == [3, 4]

    in_virtual_time(tmp_path, work)


def test_an_answer_that_is_replaced_while_the_run_is_being_resumed_is_the_one_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resume had read the records before: what the flow gets must be what the store holds."""

    async def work(runtime: Runtime) -> None:
        raised = [Boom("after the answer")]

        @flow(name="buy")
        async def buy_and_fail() -> Order:
            order = await input_required("what?", schema=Order)
            if raised:
                raise raised.pop()
            return order

        await interrupted_question(runtime, buy_and_fail)
        await runtime.answer(ID, Order("pen", 1))
        load = orchestrator.runtime.runtime.load_interrupted
        num_loads = 0

        async def load_then_replace(*args: Any) -> Any:
            nonlocal num_loads
            loaded = await load(*args)
            num_loads += 1
            if num_loads == 2:  # the one of which the records are replayed
                await runtime.answer(ID, Order("pen", 2))
            return loaded

        monkeypatch.setattr(orchestrator.runtime.runtime, "load_interrupted", load_then_replace)
        with pytest.raises(Boom):
            await runtime.resume(ID, buy_and_fail)
        monkeypatch.undo()
        assert (await runtime.resume(ID, buy_and_fail)).value == Order("pen", 2)

    in_virtual_time(tmp_path, work)


def test_a_run_of_this_process_is_cancelled_at_once_and_can_be_resumed(tmp_path: Path) -> None:
    waits = [True]

    @flow(name="may_end")
    async def may_end() -> str:
        if waits:
            await never()
        return "done"

    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, may_end)
        cancelled = await runtime.cancel(ID)
        assert asyncio.get_running_loop().time() < WATCH_S
        assert (cancelled.id, cancelled.status, cancelled.error) == (ID, "cancelled", None)
        with pytest.raises(RunCancelled, match=ID):
            await handle
        assert handle.status is Status.CANCELLED
        with pytest.raises(RunAlreadyEnded, match="is cancelled"):
            await runtime.cancel(ID)
        waits.clear()
        assert (await runtime.resume(ID, may_end)).value == "done"
        with pytest.raises(RunAlreadyEnded, match="is completed"):
            await runtime.cancel(ID)
        with pytest.raises(RunNotFound):
            await runtime.cancel("another")

    in_virtual_time(tmp_path, work)


def test_a_cancellation_in_the_store_ends_the_run_within_a_period_of_watching(
    tmp_path: Path,
) -> None:
    """As another process would: RunControl has no runs of its own."""

    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, endless)
        await asyncio.sleep(10.25)
        assert (await RunControl(runtime.store).cancel(ID)).status == "cancelled"
        run = (await recorded(runtime.store, ID)).run
        assert run.elapsed_s is not None
        assert 10.25 <= run.elapsed_s <= 10.25 + WATCH_S
        with pytest.raises(RunCancelled):
            await handle

    in_virtual_time(tmp_path, work)


def test_no_step_begins_after_a_cancellation_that_the_flow_caught(tmp_path: Path) -> None:
    begun: list[str] = []

    @step
    async def note() -> None:
        begun.append("after")

    @flow
    async def stubborn() -> str:
        try:
            await never()
        except asyncio.CancelledError:
            await note()
        return "done"

    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, stubborn)
        assert (await RunControl(runtime.store).cancel(ID)).status == "cancelled"
        with pytest.raises(RunCancelled):
            await handle

    in_virtual_time(tmp_path, work)
    assert begun == []


def test_a_caller_that_is_cancelled_itself_gets_its_own_cancellation(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, endless)
        waiting = asyncio.create_task(runtime.run(endless.options(run_id="second")))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await handle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handle
        assert (await runtime.get(ID)).status == "cancelled"

    in_virtual_time(tmp_path, work)


def test_other_runs_of_the_process_go_on(tmp_path: Path) -> None:
    @flow
    async def other() -> str:
        await asyncio.sleep(20)
        return "done"

    async def work(runtime: Runtime) -> None:
        going_on = runtime.start(other)
        await started(runtime, endless)
        await runtime.cancel(ID)
        assert (await going_on).value == "done"

    in_virtual_time(tmp_path, work)


def test_a_run_whose_process_is_gone_is_recorded_as_cancelled(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        await add(runtime.store, a_run(**GONE))
        assert (await runtime.get(ID)).status == "orphaned"
        cancelled = await RunControl(runtime.store).cancel(ID)
        assert cancelled.status == "cancelled"
        assert cancelled.ended_at is not None

    in_virtual_time(tmp_path, work)


def test_a_cancellation_waits_for_a_process_elsewhere_and_ends_the_run_if_that_dies(
    tmp_path: Path,
) -> None:
    async def work(runtime: Runtime) -> None:
        in_a_while = datetime.now(UTC) + timedelta(hours=1)
        await add(runtime.store, a_run(host="another", leased_until=in_a_while))
        cancelling = asyncio.create_task(RunControl(runtime.store).cancel(ID))
        await asyncio.sleep(30)
        assert not cancelling.done()
        async with runtime.store.transaction() as tx:
            await tx.runs.lease({ID: 1}, LONG_AGO)  # it has not renewed its lease
        assert (await cancelling).status == "cancelled"

    in_virtual_time(tmp_path, work)


def test_a_cancellation_lasts_although_nobody_waits_for_it(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, endless)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await RunControl(runtime.store).cancel(ID)
        with pytest.raises(RunCancelled):
            await handle

    in_virtual_time(tmp_path, work)


def test_a_process_that_was_taken_for_dead_finds_its_run_cancelled(tmp_path: Path) -> None:
    """It was stopped for longer than its lease, and goes on: its own end changes nothing."""

    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, endless)
        control = RunControl(runtime.store)
        async with runtime.store.transaction() as tx:
            await tx.runs.request_cancel(ID, datetime.now(UTC))
            record = await tx.runs.get(ID)
        assert await control._end_orphan(record)
        ended = await runtime.get(ID)
        with pytest.raises(RunCancelled):
            await handle
        assert await runtime.get(ID) == ended

    in_virtual_time(tmp_path, work)


def test_a_resumed_run_gets_a_new_deadline_counted_from_now(tmp_path: Path) -> None:
    @flow(name="late", deadline=10)
    async def late() -> str:
        await asyncio.sleep(30)
        return "done"

    async def work(runtime: Runtime) -> None:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(late.options(run_id=ID))
        await asyncio.sleep(90)  # it began 100 s ago
        with pytest.raises(DeadlineExceeded):
            await runtime.resume(ID, late)
        with pytest.raises(DeadlineExceeded):
            await runtime.resume(ID, late, deadline=29)
        assert (await runtime.get(ID)).deadline_s == 100 + 29
        result = await runtime.resume(ID, late, deadline="31s")
        assert result.value == "done"
        assert (result.deadline_s, result.elapsed_s, result.in_time) == (129 + 31, 129 + 30, True)
        assert (await runtime.get(ID)).deadline_s == 129 + 31
        assert (await runtime.resume(ID, late, deadline=1)).deadline_s == 129 + 31

    in_virtual_time(tmp_path, work)


def test_a_control_without_an_engine_reads_what_a_runtime_wrote(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        handle = await started(runtime, buy)
        await questions_of(runtime.store)
        async with await open_store(store_url(tmp_path)) as store:
            control = RunControl(store)
            [run] = await control.runs(status="running")
            await control.answer(run.id, Order("pen", 1), question=run.questions[0].path)
        assert (await handle).value == Order("pen", 1)

    in_virtual_time(tmp_path, work)


def test_with_a_new_deadline_the_flow_goes_on_where_it_had_begun_to_wrap_up(tmp_path: Path) -> None:
    """Its steps wait for no recorded step of the wrap-up, which is not begun this time."""
    raised = [Boom("while wrapping up")]

    @step
    async def note(what: str) -> str:
        return what

    async def wrap_up(_: object) -> str:
        await note("short")
        if raised:
            raise raised.pop()
        return "short"

    @flow(name="long", deadline=10, tail=2, wrap_up=wrap_up)
    async def long() -> str:
        await asyncio.sleep(30)
        return await note("whole")

    async def work(runtime: Runtime) -> None:
        with pytest.raises(Boom):
            await runtime.run(long.options(run_id=ID))
        result = await runtime.resume(ID, long, deadline=40)
        assert (result.value, result.elapsed_s) == ("whole", 8 + 30)

    in_virtual_time(tmp_path, work)
