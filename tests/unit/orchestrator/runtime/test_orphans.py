"""Who takes a run: refused while its process is at work, then resumed by exactly one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator import RunNotResumable, Runtime, Settings, flow, open_runtime
from orchestrator.durability.liveness import ORPHANED, process_identity, status_shown
from orchestrator.testing import ScriptedEngine
from store.errors import RunChanged, StoreLocked
from store.records import Status
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


async def test_an_orphan_is_resumed_and_then_is_this_processs_own(
    runtime: Runtime, dead_process_id: int
) -> None:
    await add(runtime.store, a_run(process_id=dead_process_id))
    assert (await runtime.resume(ID, work)).value == "done"
    run = (await recorded(runtime.store, ID)).run
    assert (run.status, run.attempts) == (Status.COMPLETED, 2)
    assert (run.process_id, run.host, run.process) == (os.getpid(), HERE, process_identity())


async def test_a_run_of_another_living_process_is_refused_until_that_is_gone(
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


async def test_a_run_that_this_process_is_at_work_on_is_refused(runtime: Runtime) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @flow(name="work")
    async def waiting() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    running = asyncio.create_task(runtime.run(waiting.options(run_id=ID)))
    await begun.wait()
    with pytest.raises(RunNotResumable, match=f"process {os.getpid()} on {HERE} is executing it"):
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
    with pytest.raises(RunNotResumable, match="on another is executing it"):
        await runtime.resume(ID, work)
    async with runtime.store.transaction() as tx:
        await tx.runs.lease({ID: 1}, now - timedelta(hours=1))
    assert (await runtime.resume(ID, work)).value == "done"


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
    tmp_path: Path, dead_process_id: int, num_contenders: int
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
        await add(runtime.store, a_run(process_id=dead_process_id))
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
            env=os.environ | {"PYTHONPATH": str(ROOT)},
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
