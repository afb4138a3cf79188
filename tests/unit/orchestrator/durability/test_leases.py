"""Leases: renewed while their runs execute; a process that lost one writes nothing more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from orchestrator import Flow, Runtime, flow, gather, step
from orchestrator.durability.leases import LEASE_S, RENEWALS, Leases
from orchestrator.durability.liveness import is_orphaned
from orchestrator.testing import VirtualClock
from store.errors import RunChanged, StoreLocked
from store.models import Run
from store.records import RunRecord, Status
from store.session import Store
from store.unit_of_work import Transaction
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, law, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import HERE, ID, a_run, add, fields_of
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time, timed_runtime


async def the_lease(store: Store, run_id: str = ID) -> datetime:
    async with store.reading() as tx:
        run = await tx.runs.get(run_id)
    assert run.leased_until is not None
    return run.leased_until


@settings(law, max_examples=examples(25))
@given(after_s=st.floats(0, 10 * LEASE_S))
def test_the_lease_of_an_executing_run_never_gets_close_to_its_expiry(after_s: float) -> None:
    """At any moment all renewals but one could fail before it expires."""

    async def run() -> None:
        started = asyncio.Event()

        @flow
        async def long() -> None:
            started.set()
            await asyncio.sleep(NEVER_S)

        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                running = asyncio.create_task(runtime.run(long.options(run_id=ID)))
                await started.wait()
                await asyncio.sleep(after_s)
                left = await the_lease(runtime.store) - LoopClock().wall()
                period_s = LEASE_S / RENEWALS
                assert LEASE_S - period_s - 1e-3 <= left.total_seconds() <= LEASE_S + 1e-3
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running

    run_in_virtual_time(run())


def test_a_lease_is_not_renewed_once_its_run_has_ended(tmp_path: Path) -> None:
    async def run() -> None:
        started = asyncio.Event()

        async def lasting(seconds: float) -> None:
            started.set()
            await asyncio.sleep(seconds)

        async with timed_runtime(tmp_path) as runtime:
            body = flow(name="lasting")(lasting)
            longer = asyncio.create_task(runtime.run(body.options(run_id="longer"), NEVER_S))
            await started.wait()
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

    run_in_virtual_time(run())


class OftenFailing:
    """A store where only every n-th transaction succeeds."""

    def __init__(self, store: Store, error: Exception, *, every: int) -> None:
        self._store = store
        self._every = every
        self._error = error
        self.num_transactions = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.num_transactions += 1
        if self.num_transactions % self._every:
            raise self._error
        async with self._store.transaction() as tx:
            yield tx


@pytest.mark.parametrize(
    "error",
    [
        StoreLocked("sqlite:///store.db", "another process writes"),
        pytest.param(RuntimeError("unexpected"), id="any other"),
    ],
)
def test_a_failed_renewal_is_logged_and_repeated_at_the_next_one(
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
                    if store.num_transactions >= 3:
                        assert await the_lease(runtime.store) > clock.wall()
        assert store.num_transactions >= 20

    with caplog.at_level(logging.WARNING, "orchestrate"):
        run_in_virtual_time(run())
    assert "could not renew the leases of 1 runs" in caplog.text


async def test_a_resumed_run_has_its_lease_at_once(runtime: Runtime) -> None:
    """Not only from the next renewal: a third host must not take it in between."""
    started = [asyncio.Event(), asyncio.Event()]
    seen: list[RunRecord] = []

    async def other() -> None:
        started[0].set()
        await started[1].wait()

    @flow(name="work")
    async def work() -> None:
        seen.append((await recorded(runtime.store, ID)).run)
        started[1].set()

    past = datetime.now(UTC) - timedelta(hours=1)
    await add(runtime.store, a_run(host="another", leased_until=past, process_id=1))
    running = asyncio.create_task(runtime.run(flow(other)))  # so that the renewing task runs
    await started[0].wait()
    await runtime.resume(ID, work)
    await running
    assert [run.host for run in seen] == [HERE]
    assert not is_orphaned(seen[0], host="a third")
    assert is_orphaned(RunRecord(**{**fields_of(seen[0]), "leased_until": past}), host="a third")


async def expire(store: Store) -> None:
    """Make the run look like one of another host, with a lease that expired long ago."""
    async with store._writer.begin() as connection:
        columns = {"host": "another", "leased_until": datetime(2020, 1, 1, tzinfo=UTC)}
        await connection.execute(update(Run).values(**columns))


@pytest.mark.parametrize("in_branch", [False, True])
async def test_a_process_that_lost_a_run_while_suspended_writes_nothing_more_of_it(
    tmp_path: Path, in_branch: bool
) -> None:
    started, proceed = asyncio.Event(), asyncio.Event()
    executed_by: list[str] = []

    def work_of(process: str) -> Flow[[], str]:
        @step
        async def wait(parallel: bool = False) -> str:
            if process == "former" and not parallel:
                started.set()
                await proceed.wait()
            return process

        @step
        async def after() -> str:
            executed_by.append(process)
            return process

        async def body() -> str:
            await (gather(wait(), wait(parallel=True)) if in_branch else wait())
            return await after()

        return flow(name="work")(body)

    clock = VirtualClock(datetime.now(UTC))
    async with (
        scripted_runtime(tmp_path, clock=clock) as former,
        scripted_runtime(tmp_path, clock=VirtualClock(clock.wall())) as latter,
    ):
        running = asyncio.create_task(former.run(work_of("former").options(run_id=ID)))
        await started.wait()
        await expire(former.store)
        assert (await latter.resume(ID, work_of("latter"))).value == "latter"
        before = await recorded(latter.store, ID)
        clock.advance(2 * LEASE_S)
        proceed.set()
        with pytest.raises(RunChanged):
            await running
        assert await recorded(latter.store, ID) == before
    assert executed_by == ["latter"]


async def test_a_run_that_another_process_took_is_ended_here_at_the_next_renewal(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        started = asyncio.Event()

        async def waiting() -> None:
            started.set()
            await asyncio.sleep(NEVER_S)

        running = asyncio.create_task(runtime.run(flow(waiting).options(run_id=ID)))
        await started.wait()
        async with runtime.store._writer.begin() as connection:
            await connection.execute(update(Run).values(attempts=2))
        await runtime._leases.renew()
        with pytest.raises(RunChanged):
            await running
        assert (await recorded(runtime.store, ID)).run.status is Status.RUNNING
