"""Orphaned runs: refused while a process executes them, then resumed by exactly one process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import orchestrator.runtime.runtime
from orchestrator import RunNotResumable, Runtime, Settings, flow, open_runtime, step
from orchestrator.durability.liveness import ORPHANED, process_identity, status_shown
from orchestrator.runtime.recovery import InterruptedRun
from orchestrator.testing import ScriptedEngine
from store.errors import StoreLocked
from store.records import Status
from store.session import Store
from tests.places import ROOT
from tests.unit.orchestrator.orchestrator_samples import (
    answer_ok,
    recorded,
    scripted_runtime,
    store_url,
)
from tests.unit.orchestrator.run_samples import HERE, ID, a_run, add


@flow(name="work")
async def work() -> str:
    return "done"


@pytest.mark.usefixtures("subprocesses")
async def test_an_orphaned_run_is_resumed_and_recorded_as_run_by_this_process(
    runtime: Runtime, dead_process_id: int
) -> None:
    await add(runtime.store, a_run(process_id=dead_process_id))
    assert (await runtime.resume(ID, work)).value == "done"
    run = (await recorded(runtime.store, ID)).run
    assert (run.status, run.attempts) == (Status.COMPLETED, 2)
    assert (run.process_id, run.host, run.process) == (os.getpid(), HERE, process_identity())


@pytest.mark.usefixtures("subprocesses")
async def test_a_run_of_another_process_is_refused_until_that_process_has_ended(
    runtime: Runtime, living_process: subprocess.Popen[bytes]
) -> None:
    await add(runtime.store, a_run(process_id=living_process.pid))
    with pytest.raises(
        RunNotResumable, match=f"process {living_process.pid} on {HERE} is executing it"
    ):
        await runtime.resume(ID, work)
    assert (await recorded(runtime.store, ID)).run.attempts == 1
    living_process.kill()
    living_process.wait()
    assert (await runtime.resume(ID, work)).value == "done"


async def test_a_run_that_this_process_executes_is_refused(runtime: Runtime) -> None:
    started, proceed = asyncio.Event(), asyncio.Event()

    @flow(name="work")
    async def waiting() -> str:
        started.set()
        await proceed.wait()
        return "done"

    running = asyncio.create_task(runtime.run(waiting.options(run_id=ID)))
    await started.wait()
    with pytest.raises(RunNotResumable, match=f"process {os.getpid()} on {HERE} is executing it"):
        await runtime.resume(ID, waiting)
    proceed.set()
    assert (await running).value == "done"


async def test_a_run_with_an_unwritten_end_can_be_resumed_by_the_same_process(
    tmp_path: Path,
) -> None:
    times = 0
    options = Settings(store=f"{store_url(tmp_path)}?timeout=0.05", fit_every=0)
    async with open_runtime(options, engine=ScriptedEngine(answer_ok)) as runtime:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:

            @flow(name="work")
            async def locking() -> str:
                nonlocal times
                times += 1
                if times == 1:
                    other.execute("BEGIN IMMEDIATE")
                return "done"

            with pytest.raises(StoreLocked):
                await runtime.run(locking.options(run_id=ID))
            other.execute("ROLLBACK")
            assert status_shown((await recorded(runtime.store, ID)).run) == ORPHANED
            assert (await runtime.resume(ID, locking)).value == "done"


async def test_a_run_of_another_host_is_refused_until_its_lease_has_expired(
    runtime: Runtime,
) -> None:
    now = datetime.now(UTC)
    await add(runtime.store, a_run(host="another", leased_until=now + timedelta(hours=1)))
    with pytest.raises(RunNotResumable, match="on another is executing it"):
        await runtime.resume(ID, work)
    async with runtime.store.transaction() as tx:
        await tx.runs.lease({ID: 1}, now - timedelta(hours=1))
    assert (await runtime.resume(ID, work)).value == "done"


class StartsTogether(ScriptedEngine):
    """Engines that start together, once each of their runtimes has read the orphaned run."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        super().__init__(answer_ok)
        self._barrier = barrier

    async def start(self) -> None:
        await super().start()
        await self._barrier.wait()


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("num_contenders", [2, 5])
async def test_of_several_runtimes_that_read_the_same_orphan_exactly_one_resumes_it(
    tmp_path: Path, dead_process_id: int, num_contenders: int
) -> None:
    barrier, num_executions = asyncio.Barrier(num_contenders), 0

    @flow(name="work")
    async def counted() -> str:
        nonlocal num_executions
        num_executions += 1
        await asyncio.sleep(0.01)
        return "done"

    async def contend() -> str:
        async with scripted_runtime(tmp_path, StartsTogether(barrier)) as runtime:
            return (await runtime.resume(ID, counted)).value

    async with scripted_runtime(tmp_path) as runtime:
        await add(runtime.store, a_run(process_id=dead_process_id))
        contenders = [contend() for _ in range(num_contenders)]
        results = await asyncio.gather(*contenders, return_exceptions=True)
        record = await recorded(runtime.store, ID)
    assert results.count("done") == 1
    assert [type(each) for each in results if each != "done"] == [RunNotResumable] * (
        num_contenders - 1
    )
    assert num_executions == 1
    assert (record.run.status, record.run.attempts) == (Status.COMPLETED, 2)


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
    result = await first()
    if role == "begin":
        os.kill(os.getpid(), signal.SIGKILL)
    with open("done", "a") as file:
        file.write(f"{role}\\n")
    while not os.path.exists("finish"):
        await asyncio.sleep(0.01)
    return result + " and last"

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


def wait_until(condition: Any) -> None:
    timeout_at_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < timeout_at_s
        time.sleep(0.01)


@pytest.mark.usefixtures("subprocesses")
async def test_of_two_processes_that_resume_an_orphan_at_the_same_time_exactly_one_succeeds(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path):
        pass  # creates the store
    (tmp_path / "script.py").write_text(SCRIPT)

    def started(role: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "script.py", role, store_url(tmp_path)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    with started("begin") as killed:
        killed.wait(timeout=60)
    with started("a") as first, started("b") as second:
        try:
            wait_until(lambda: all((tmp_path / f"{role} is ready").exists() for role in "ab"))
            (tmp_path / "go").touch()
            wait_until(lambda: first.poll() is not None or second.poll() is not None)
            (tmp_path / "finish").touch()
            outputs = sorted(
                process.communicate(timeout=60)[0].strip() for process in (first, second)
            )
        finally:
            first.kill()
            second.kill()
    assert outputs[0] == "RunNotResumable"
    assert outputs[1] == "first and last"
    assert len((tmp_path / "done").read_text().split()) == 1
    async with scripted_runtime(tmp_path) as runtime:
        run = (await recorded(runtime.store, ID)).run
    assert (run.status, run.attempts) == (Status.COMPLETED, 2)


async def test_what_a_dead_process_commits_after_the_run_was_read_is_replayed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PostgreSQL server may commit what it received from a process that has been killed since."""
    executions: list[str] = []

    @step
    async def count() -> int:
        executions.append("count")
        return len(executions)

    @flow(name="work")
    async def counting() -> int:
        return await count()

    await runtime.run(counting.options(run_id="model"))
    [recorded_step] = (await recorded(runtime.store, "model")).journal.values()
    await add(runtime.store, a_run(process=process_identity()))
    load, num_loads = orchestrator.runtime.runtime.load_interrupted, 0

    async def load_then_commit(store: Store, run_id: str) -> InterruptedRun | None:
        nonlocal num_loads
        loaded = await load(store, run_id)
        num_loads += 1
        if num_loads == 1:
            async with store.transaction() as tx:
                await tx.journal.start(replace(recorded_step, run_id=ID))
        return loaded

    monkeypatch.setattr("orchestrator.runtime.runtime.load_interrupted", load_then_commit)
    assert (await runtime.resume(ID, counting)).value == 1
    assert executions == ["count"]
