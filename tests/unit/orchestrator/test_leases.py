"""Who is at work on a run: leases that are renewed, processes that are gone, runs taken once."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from orchestrator import (
    Flow,
    RunNotResumable,
    Runtime,
    Settings,
    flow,
    gather,
    open_runtime,
    step,
)
from orchestrator.leases import LEASE_S, RENEWALS, Leases
from orchestrator.liveness import ORPHANED, is_orphaned, status_shown, this_process
from orchestrator.testing import ScriptedEngine, VirtualClock
from store.errors import RunChanged, StoreLocked
from store.models import Run
from store.records import RunRecord, Status
from store.session import Store
from store.unit_of_work import Transaction
from tests.unit.orchestrator.jumping_time import LoopClock, in_jumping_time, timed_runtime
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    law,
    recorded,
    scripted_runtime,
    store_url,
)
from tests.unit.orchestrator.run_samples import HERE, ID, a_run

REPOSITORY = Path(__file__).parents[3]


async def add(store: Store, run: RunRecord) -> None:
    """Record a run that was called without arguments."""
    async with store.transaction() as tx:
        name = await tx.payloads.put(b"{}", media_type="application/json")
        await tx.runs.add(RunRecord(**{**_fields(run), "input_payload": name}))


def _fields(run: RunRecord) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RunRecord.__dataclass_fields__}


async def the_lease(store: Store, run_id: str = ID) -> datetime:
    async with store.reading() as tx:
        run = await tx.runs.get(run_id)
    assert run.leased_until is not None
    return run.leased_until


@settings(law, max_examples=25)
@given(after_s=st.floats(0, 10 * LEASE_S))
def test_the_lease_of_a_living_run_never_comes_near_its_end(after_s: float) -> None:
    """At any moment there is time left for all renewals but one to fail."""

    async def run() -> None:
        begun = asyncio.Event()

        @flow
        async def long() -> None:
            begun.set()
            await asyncio.sleep(NEVER_S)

        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                running = asyncio.create_task(runtime.run(long.options(run_id=ID)))
                await begun.wait()
                await asyncio.sleep(after_s)
                left = await the_lease(runtime.store) - LoopClock().wall()
                most_s, period_s = LEASE_S, LEASE_S / RENEWALS
                assert most_s - period_s - 1e-3 <= left.total_seconds() <= most_s + 1e-3
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running

    in_jumping_time(run())


def test_a_lease_is_not_renewed_once_its_run_has_ended(tmp_path: Path) -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def lasting(seconds: float) -> None:
            begun.set()
            await asyncio.sleep(seconds)

        async with timed_runtime(tmp_path) as runtime:
            body = flow(name="lasting")(lasting)
            longer = asyncio.create_task(runtime.run(body.options(run_id="longer"), NEVER_S))
            await begun.wait()
            shorter = runtime.run(body.options(run_id="shorter"), 2 * LEASE_S)
            await shorter
            ended, renewed = [
                await the_lease(runtime.store, name) for name in ("shorter", "longer")
            ]
            await asyncio.sleep(3 * LEASE_S)
            assert await the_lease(runtime.store, "shorter") == ended
            assert await the_lease(runtime.store, "longer") >= renewed + timedelta(seconds=LEASE_S)
            longer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await longer
            assert len(asyncio.all_tasks()) == 1

    in_jumping_time(run())


class OftenFailing:
    """A store of whose transactions only every so many-th succeeds."""

    def __init__(self, store: Store, error: Exception, *, every: int) -> None:
        self._store = store
        self._every = every
        self._error = error
        self.num_asked = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.num_asked += 1
        if self.num_asked % self._every:
            raise self._error
        async with self._store.transaction() as tx:
            yield tx


@pytest.mark.parametrize(
    "error",
    [
        StoreLocked("sqlite:///store.db", "somebody writes"),
        pytest.param(RuntimeError("what nobody thought of"), id="any other"),
    ],
)
def test_a_store_that_fails_at_a_renewal_is_asked_again_at_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            store, clock = OftenFailing(runtime.store, error, every=3), LoopClock()
            await add(runtime.store, a_run(leased_until=clock.wall()))
            leases = Leases(cast("Store", store), clock)
            async with leases.held(a_run()):
                for _ in range(20):
                    await asyncio.sleep(LEASE_S / 2)
                    if store.num_asked >= 3:
                        assert await the_lease(runtime.store) > clock.wall()
        assert store.num_asked >= 20

    with caplog.at_level(logging.WARNING, "orchestrate"):
        in_jumping_time(run())
    assert "leases of 1 runs are not renewed" in caplog.text


async def test_a_run_has_its_lease_from_the_moment_that_it_is_taken(runtime: Runtime) -> None:
    """Not only with the next renewal: a third host must not take it in between."""
    begun = [asyncio.Event(), asyncio.Event()]
    seen: list[RunRecord] = []

    async def other() -> None:
        begun[0].set()
        await begun[1].wait()

    @flow(name="work")
    async def work() -> None:
        seen.append((await recorded(runtime.store, ID)).run)
        begun[1].set()

    past = datetime.now(UTC) - timedelta(hours=1)
    await add(runtime.store, a_run(host="another", leased_until=past, process_id=1))
    running = asyncio.create_task(runtime.run(flow(other)))  # the renewing is under way already
    await begun[0].wait()
    await runtime.resume(ID, work)
    await running
    assert [run.host for run in seen] == [HERE]
    assert not is_orphaned(seen[0], host="a third")
    assert is_orphaned(RunRecord(**{**_fields(seen[0]), "leased_until": past}), host="a third")


@flow(name="work")
async def work() -> str:
    return "done"


async def test_an_orphan_is_resumed_and_then_is_this_processs_own(
    runtime: Runtime, gone: int
) -> None:
    await add(runtime.store, a_run(process_id=gone))
    assert (await runtime.resume(ID, work)).value == "done"
    run = (await recorded(runtime.store, ID)).run
    assert (run.status, run.attempts) == (Status.COMPLETED, 2)
    assert (run.process_id, run.host, run.process) == (os.getpid(), HERE, this_process())


async def test_a_run_of_another_living_process_is_refused_until_that_is_gone(
    runtime: Runtime, living: subprocess.Popen[bytes]
) -> None:
    await add(runtime.store, a_run(process_id=living.pid))
    with pytest.raises(RunNotResumable, match=f"process {living.pid} on {HERE} is at work"):
        await runtime.resume(ID, work)
    assert (await recorded(runtime.store, ID)).run.attempts == 1
    living.kill()
    living.wait()
    assert (await runtime.resume(ID, work)).value == "done"


async def test_a_run_that_this_process_is_at_work_on_is_refused(runtime: Runtime) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @flow(name="work")
    async def waiting() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    running = asyncio.create_task(runtime.run(waiting.options(run_id=ID)))
    await begun.wait()
    with pytest.raises(RunNotResumable, match=f"process {os.getpid()} on {HERE} is at work"):
        await runtime.resume(ID, waiting)
    go_on.set()
    assert (await running).value == "done"


async def test_a_run_whose_end_could_not_be_written_is_gone_on_with_by_the_same_process(
    tmp_path: Path,
) -> None:
    times = 0
    options = Settings(store=f"{store_url(tmp_path)}?timeout=0.05", fit_every=0)
    async with open_runtime(options, engine=ScriptedEngine(answer_ok)) as runtime:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:

            @flow(name="work")
            async def held_up() -> str:
                nonlocal times
                times += 1
                if times == 1:
                    other.execute("BEGIN IMMEDIATE")
                return "done"

            with pytest.raises(StoreLocked):
                await runtime.run(held_up.options(run_id=ID))
            other.execute("ROLLBACK")
            assert status_shown((await recorded(runtime.store, ID)).run) == ORPHANED
            assert (await runtime.resume(ID, held_up)).value == "done"


async def test_a_run_that_another_host_has_leased_is_refused_until_its_lease_has_run_out(
    runtime: Runtime,
) -> None:
    now = datetime.now(UTC)
    await add(runtime.store, a_run(host="another", leased_until=now + timedelta(hours=1)))
    with pytest.raises(RunNotResumable, match="on another is at work"):
        await runtime.resume(ID, work)
    async with runtime.store.transaction() as tx:
        await tx.runs.lease({ID: 1}, now - timedelta(hours=1))
    assert (await runtime.resume(ID, work)).value == "done"


async def expire(store: Store) -> None:
    """Make the run look like another host's that has not been heard of for long."""
    async with store._writer.begin() as connection:
        gone = {"host": "another", "leased_until": datetime(2020, 1, 1, tzinfo=UTC)}
        await connection.execute(update(Run).values(**gone))


@pytest.mark.parametrize("in_branch", [False, True])
async def test_whoever_lost_a_run_while_stopped_writes_nothing_of_it_any_more(
    tmp_path: Path, in_branch: bool
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    def doing(who: str) -> Flow[[], str]:
        @step
        async def wait(beside: bool = False) -> str:
            if who == "former" and not beside:
                begun.set()
                await go_on.wait()
            return who

        @step
        async def after() -> str:
            done.append(who)
            return who

        async def body() -> str:
            await (gather(wait(), wait(beside=True)) if in_branch else wait())
            return await after()

        return flow(name="work")(body)

    clock = VirtualClock(datetime.now(UTC))
    async with (
        scripted_runtime(tmp_path, clock=clock) as former,
        scripted_runtime(tmp_path, clock=VirtualClock(clock.wall())) as latter,
    ):
        running = asyncio.create_task(former.run(doing("former").options(run_id=ID)))
        await begun.wait()
        await expire(former.store)
        assert (await latter.resume(ID, doing("latter"))).value == "latter"
        whole = await recorded(latter.store, ID)
        clock.advance(2 * LEASE_S)
        go_on.set()
        with pytest.raises(RunChanged):
            await running
        assert await recorded(latter.store, ID) == whole
    assert done == ["latter"]


async def test_a_run_that_was_taken_is_ended_here_at_the_next_renewal(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        begun = asyncio.Event()

        async def waiting() -> None:
            begun.set()
            await asyncio.sleep(NEVER_S)

        running = asyncio.create_task(runtime.run(flow(waiting).options(run_id=ID)))
        await begun.wait()
        async with runtime.store._writer.begin() as connection:
            await connection.execute(update(Run).values(attempts=2))
        await runtime._leases.renew()
        with pytest.raises(RunChanged):
            await running
        assert (await recorded(runtime.store, ID)).run.status is Status.RUNNING


class Together(ScriptedEngine):
    """Engines that have started once all of them are asked to: after the run was looked at."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        super().__init__(answer_ok)
        self._barrier = barrier

    async def start(self) -> None:
        await super().start()
        await self._barrier.wait()


@pytest.mark.parametrize("num_contenders", [2, 5])
async def test_of_runtimes_that_saw_the_same_orphan_exactly_one_goes_on_with_it(
    tmp_path: Path, gone: int, num_contenders: int
) -> None:
    barrier, num_done = asyncio.Barrier(num_contenders), 0

    @flow(name="work")
    async def counted() -> str:
        nonlocal num_done
        num_done += 1
        await asyncio.sleep(0.01)
        return "done"

    async def contend() -> str:
        async with scripted_runtime(tmp_path, Together(barrier)) as runtime:
            return (await runtime.resume(ID, counted)).value

    async with scripted_runtime(tmp_path) as runtime:
        await add(runtime.store, a_run(process_id=gone))
        contenders = [contend() for _ in range(num_contenders)]
        results = await asyncio.gather(*contenders, return_exceptions=True)
        found = await recorded(runtime.store, ID)
    assert results.count("done") == 1
    assert [type(each) for each in results if each != "done"] == [RunChanged] * (num_contenders - 1)
    assert num_done == 1
    assert (found.run.status, found.run.attempts) == (Status.COMPLETED, 2)


SCRIPT = """
import asyncio, os, signal, sys, time
from pathlib import Path
from orchestrator import Settings, flow, open_runtime, step
from orchestrator.testing import ScriptedEngine, VirtualClock

role, url = sys.argv[1:]

@step
async def first() -> str:
    return "first"

@flow(name="work")
async def work() -> str:
    said = await first()
    if role == "begin":
        os.kill(os.getpid(), signal.SIGKILL)
    with open("done", "a") as file:
        file.write(f"{role}\\n")
    while not os.path.exists("finish"):
        await asyncio.sleep(0.01)
    return said + " and last"

async def main() -> None:
    engine = ScriptedEngine(lambda request: "")
    async with open_runtime(Settings(store=url, fit_every=0), engine=engine) as runtime:
        if role == "begin":
            await runtime.run(work.options(run_id="the-run"))
        Path(f"{role} is ready").touch()
        while not os.path.exists("go"):
            time.sleep(0.001)
        try:
            print((await runtime.resume("the-run", work)).value)
        except Exception as error:
            print(type(error).__name__)

asyncio.run(main())
"""


def until(is_so: Any) -> None:
    give_up_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


async def test_of_two_processes_that_resume_an_orphan_at_once_exactly_one_does(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path):
        pass  # makes the store
    (tmp_path / "script.py").write_text(SCRIPT)

    def begun(role: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "script.py", role, store_url(tmp_path)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            text=True,
        )

    with begun("begin") as killed:
        killed.wait(timeout=60)
    with begun("a") as one, begun("b") as other:
        try:
            until(lambda: all((tmp_path / f"{role} is ready").exists() for role in "ab"))
            (tmp_path / "go").touch()
            until(lambda: one.poll() is not None or other.poll() is not None)
            (tmp_path / "finish").touch()
            said = sorted(process.communicate(timeout=60)[0].strip() for process in (one, other))
        finally:
            one.kill()
            other.kill()
    assert said[0] in ("RunChanged", "RunNotResumable")
    assert said[1] == "first and last"
    assert len((tmp_path / "done").read_text().split()) == 1
    async with scripted_runtime(tmp_path) as runtime:
        run = (await recorded(runtime.store, ID)).run
    assert (run.status, run.attempts) == (Status.COMPLETED, 2)
