"""Leases: renewed while their runs are at work, and who lost one writes nothing of its run."""

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
from tests.unit.orchestrator.jumping_time import LoopClock, in_jumping_time, timed_runtime
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, law, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import HERE, ID, a_run, add, fields_of


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
    assert "could not renew the leases of 1 runs" in caplog.text


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
    assert is_orphaned(RunRecord(**{**fields_of(seen[0]), "leased_until": past}), host="a third")


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
