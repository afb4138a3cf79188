"""Submission and workers: a submitted run is executed once, by its deadline, wherever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from orchestrator import (
    DeadlineInfeasible,
    InvalidDuration,
    InvalidQueueOption,
    InvalidSettings,
    ResultNotSerialisable,
    Runtime,
    Worker,
    best_so_far,
    flow,
    step,
)
from orchestrator.learning import feasibility
from orchestrator.runtime import code_versions, worker
from store.errors import RunExists, StoreUnreachable
from store.models import Run
from store.queue.claims import Claims
from store.records import RunRecord, Status
from store.session import Store
from tests.unit.orchestrator.orchestrator_samples import Boom, scripted_runtime

LONG_AGO = timedelta(hours=1)

executed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    executed.clear()
    monkeypatch.setattr(worker, "LOOK_S", 0.02)


@flow
async def note(text: str) -> str:
    executed.append(text)
    return text.upper()


@flow
async def fail(text: str) -> None:
    executed.append(text)
    raise Boom(text)


gates: dict[str, asyncio.Event] = {}


@flow
async def wait(text: str) -> str:
    executed.append(text)
    await gates.setdefault(text, asyncio.Event()).wait()
    return text


@step
async def first_step() -> str:
    executed.append("first")
    return "first"


@flow
async def two_steps() -> str:
    value = await first_step()
    executed.append("second")
    await gates.setdefault("second", asyncio.Event()).wait()
    return value


@flow(deadline="60s", on_deadline="best_so_far")
async def improving() -> str:
    best_so_far("something")
    await asyncio.sleep(3600)
    return "all"


@asynccontextmanager
async def working(runtime: Runtime, *flows: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker, which stops at the block's end and waits for its runs."""
    begun = Worker(runtime, flows or [note, fail, wait, two_steps, improving], **options)
    running = asyncio.create_task(begun.run())
    try:
        yield begun
    finally:
        begun.stop()
        async with asyncio.timeout(20):
            await running


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.005)


async def until_ended(store: Store, run_id: str) -> RunRecord:
    async with asyncio.timeout(20):
        while True:
            async with store.reading() as tx:
                run = await tx.runs.get(run_id)
            if run.status not in (Status.QUEUED, Status.RUNNING):
                return run
            await asyncio.sleep(0.005)


async def change(store: Store, run_id: str, **values: Any) -> None:
    async with store.transaction() as tx:
        await tx.runs._connection.execute(update(Run).where(Run.id == run_id).values(**values))


async def test_a_submitted_run_is_executed_by_a_worker(runtime: Runtime) -> None:
    submitted = await runtime.submit(note.options(tags={"team": "sea"}, user="ann"), "tides")
    assert (submitted.is_new, submitted.queue, submitted.num_ahead) == (True, "default", 0)
    waiting = await runtime.get(submitted.run_id)
    assert (waiting.status, waiting.queue, waiting.user) == ("queued", "default", "ann")
    assert executed == []
    async with working(runtime):
        run = await until_ended(runtime.store, submitted.run_id)
    assert (run.status, run.tags, run.attempts) == (Status.COMPLETED, {"team": "sea"}, 1)
    assert (await runtime.resume(submitted.run_id, note)).value == "TIDES"
    assert executed == ["tides"]


async def test_runs_are_executed_by_priority_then_deadline_then_submission(
    runtime: Runtime,
) -> None:
    for text, variant in (
        ("third", note),
        ("second", note.options(deadline="2h")),
        ("first", note.options(deadline="1h")),
        ("urgent", note.queued(priority=1)),
        ("last", note.queued(priority=-1).options(deadline="1m")),
    ):
        await runtime.submit(variant, text)
    async with working(runtime, concurrency=1):
        await until(lambda: len(executed) == 5)
    assert executed == ["urgent", "first", "second", "third", "last"]


async def test_a_deadline_counts_from_submission(runtime: Runtime) -> None:
    submitted = await runtime.submit(improving)
    moved = datetime.now(UTC) - timedelta(seconds=59.9)
    await change(runtime.store, submitted.run_id, started_at=moved)
    async with working(runtime):
        run = await until_ended(runtime.store, submitted.run_id)
    assert run.status is Status.COMPLETED
    assert run.elapsed_s == pytest.approx(60, abs=1)
    assert (await runtime.resume(submitted.run_id, improving)).value == "something"


async def test_a_run_whose_deadline_passed_in_the_queue_ends_as_its_flow_says(
    runtime: Runtime,
) -> None:
    late = await runtime.submit(wait.options(deadline="1s"), "late")
    await change(runtime.store, late.run_id, started_at=datetime.now(UTC) - LONG_AGO)
    async with working(runtime):
        run = await until_ended(runtime.store, late.run_id)
    assert (run.status, run.error_type) == (Status.FAILED, "DeadlineExceeded")


async def test_a_deadline_counts_from_the_moment_before_which_a_run_may_not_begin(
    runtime: Runtime,
) -> None:
    later = await runtime.submit(note.queued(not_before="1h").options(deadline="60s"), "later")
    async with runtime.store.reading() as tx:
        run = await tx.runs.get(later.run_id)
    assert run.not_before is not None
    assert run.due_at == run.not_before + timedelta(seconds=60)
    async with working(runtime):
        await asyncio.sleep(0.1)
    assert executed == []


async def test_a_worker_executes_at_most_so_many_runs_at_once(runtime: Runtime) -> None:
    for number in range(4):
        await runtime.submit(wait, f"{number}")
    async with working(runtime, concurrency=2) as begun:
        await until(lambda: len(executed) == 2)
        await asyncio.sleep(0.1)
        assert begun.num_running == len(executed) == 2
        gates["0"].set()
        await until(lambda: len(executed) == 3)
        for number in range(4):
            gates.setdefault(f"{number}", asyncio.Event()).set()
        await until(lambda: len(executed) == 4)
    gates.clear()


async def test_a_run_of_other_code_waits_unless_any_version_is_allowed(
    runtime: Runtime,
) -> None:
    submitted = await runtime.submit(note, "x")
    runtime.code_version = "another"
    async with working(runtime):
        await asyncio.sleep(0.1)
    assert executed == []
    async with working(runtime, any_version=True):
        await until_ended(runtime.store, submitted.run_id)
    assert executed == ["x"]


def test_the_version_of_a_flow_is_that_of_its_file() -> None:
    assert code_versions.code_version_of(note, None) == code_versions.code_version_of(fail, None)
    assert code_versions.code_version_of(note, "v7") == "v7"
    source: dict[str, Any] = {"flow": flow}
    exec("async def made(): ...\nmade = flow(made)", source)
    assert code_versions.code_version_of(source["made"], None) == code_versions.UNKNOWN


async def test_a_flow_that_fails_is_tried_again_only_if_it_was_submitted_so(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    once = await runtime.submit(fail, "once")
    often = await runtime.submit(fail.queued(retry="10ms", attempts=3), "often")
    async with working(runtime):
        ended_once = await until_ended(runtime.store, once.run_id)
        ended_often = await until_ended(runtime.store, often.run_id)
    assert (ended_once.status, ended_once.error_type) == (Status.FAILED, "Boom")
    assert (ended_often.status, ended_often.error_type) == (Status.DEAD, "Boom")
    assert (ended_often.attempts, ended_often.failed_attempts) == (3, 3)
    assert executed.count("once") == 1
    assert executed.count("often") == 3


async def test_a_lost_run_goes_on_from_its_last_recorded_outcome(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        submitted = await runtime.submit(two_steps)
        async with working(runtime) as begun:
            await until(lambda: "second" in executed)
            begun.stop()
            assert await runtime.drain(0) == [submitted.run_id]
        async with runtime.store.reading() as tx:
            run = await tx.runs.get(submitted.run_id)
        assert (run.status, run.attempts, run.failed_attempts) == (Status.QUEUED, 2, 0)
    gates.pop("second").set()
    async with scripted_runtime(tmp_path) as runtime:
        gates["second"] = asyncio.Event()
        gates["second"].set()
        async with working(runtime):
            run = await until_ended(runtime.store, submitted.run_id)
    assert run.status is Status.COMPLETED
    assert executed == ["first", "second", "second"]
    gates.clear()


async def test_a_worker_that_is_told_to_stop_waits_for_its_runs_and_hands_back_the_rest(
    runtime: Runtime,
) -> None:
    quick = await runtime.submit(wait, "quick")
    slow = await runtime.submit(wait, "slow")
    begun = Worker(runtime, [wait])
    running = asyncio.create_task(begun.run(grace="300ms"))
    await until(lambda: len(executed) == 2)
    begun.stop()
    gates["quick"].set()
    assert await running == [slow.run_id]
    gates.clear()
    assert (await runtime.get(quick.run_id)).status == "completed"
    assert (await runtime.get(slow.run_id)).status == "queued"


async def test_a_run_whose_arguments_no_longer_fit_is_dead_with_its_error(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    @flow(name="note")
    async def other(number: int) -> int:
        return number

    submitted = await runtime.submit(note, "x")
    async with working(runtime, other, any_version=True):
        run = await until_ended(runtime.store, submitted.run_id)
    assert (run.status, run.failed_attempts) == (Status.DEAD, 3)
    assert run.error_type == "ResultUnreadable"
    assert "argument text" in caplog.text


async def test_a_waiting_run_is_cancelled_at_once(runtime: Runtime) -> None:
    submitted = await runtime.submit(note, "x")
    assert (await runtime.cancel(submitted.run_id)).status == "cancelled"
    async with working(runtime):
        await asyncio.sleep(0.1)
    assert executed == []


async def test_a_run_that_a_worker_executes_is_cancelled_there(runtime: Runtime) -> None:
    submitted = await runtime.submit(wait, "x")
    async with working(runtime):
        await until(lambda: bool(executed))
        assert (await runtime.cancel(submitted.run_id)).status == "cancelled"
    gates.clear()


async def test_one_run_with_a_key_waits(runtime: Runtime) -> None:
    keyed = note.queued(key="tides")
    first, again = [await runtime.submit(keyed, text) for text in ("a", "b")]
    assert (again.run_id, again.is_new) == (first.run_id, False)
    await runtime.submit(note.options(run_id="mine"), "c")
    with pytest.raises(RunExists):
        await runtime.submit(note.options(run_id="mine"), "c")


async def test_a_submission_that_cannot_be_executed_later_is_refused(tmp_path: Path) -> None:
    @flow
    async def of_anything(thing: object) -> None: ...

    async with scripted_runtime(tmp_path) as runtime:
        with pytest.raises(ResultNotSerialisable):
            await runtime.submit(of_anything, object())
        with pytest.raises(TypeError):
            await runtime.submit(note, "x", "y")  # type: ignore[call-arg]
        assert await runtime.runs() == []
    async with scripted_runtime(tmp_path, durable=False) as runtime:
        with pytest.raises(InvalidSettings, match="ORCHESTRATE_DURABLE"):
            await runtime.submit(note, "x")


async def test_feasibility_is_said_at_submission(runtime: Runtime) -> None:
    @flow
    async def slow() -> None:
        await asyncio.sleep(0.02)
        await first_step()

    unknown = await runtime.submit(slow.options(deadline="1ms"))
    assert unknown.feasibility.is_feasible is None
    for _ in range(6):
        await runtime.run(slow)
    submitted = await runtime.submit(slow.options(deadline="1h"))
    assert submitted.feasibility.deadline_s == 3600
    assert submitted.feasibility.is_feasible in (True, None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"queue": ""}, InvalidQueueOption),
        ({"queue": "a b"}, InvalidQueueOption),
        ({"priority": 1.5}, InvalidQueueOption),
        ({"priority": 10**9}, InvalidQueueOption),
        ({"attempts": 0}, InvalidQueueOption),
        ({"key": ""}, InvalidQueueOption),
        ({"key": "x" * 201}, InvalidQueueOption),
        ({"not_before": datetime(2030, 1, 1)}, InvalidQueueOption),
        ({"not_before": "-1s"}, InvalidDuration),
        ({"retry": 0}, InvalidDuration),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        note.queued(**options)


@pytest.mark.parametrize(
    ("flows", "options"),
    [([], {}), ([note, note], {}), ([note], {"queues": []}), ([note], {"concurrency": 0})],
)
async def test_a_worker_without_work_is_refused(
    runtime: Runtime, flows: list[Any], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidQueueOption):
        Worker(runtime, flows, **options)


async def test_a_deadline_shorter_than_all_past_runs_is_refused_where_the_flow_says_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        feasibility, "learned_bound", lambda library: feasibility.Bound(seconds=9.0, runs=7)
    )
    strict = flow(infeasible="fail", name="strict")(note.body)
    with pytest.raises(DeadlineInfeasible):
        await runtime.submit(strict.options(deadline="2s"), "x")
    warned = await runtime.submit(note.options(deadline="2s"), "x")
    assert warned.feasibility.is_feasible is False


async def test_a_worker_goes_on_after_its_store_failed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "AGAIN_S", 0.01)
    take, failures = Claims.take, iter([True, True])

    async def often_failing(self: Claims, *args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise StoreUnreachable("postgresql://db", "it restarts")
        return await take(self, *args, **kwargs)

    monkeypatch.setattr(Claims, "take", often_failing)
    submitted = await runtime.submit(note, "x")
    async with working(runtime):
        await until_ended(runtime.store, submitted.run_id)
    assert caplog.text.count("it restarts") == 2
