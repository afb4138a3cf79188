"""Laws of every store, with real processes: no committed transaction is ever lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.session import Store, open_store
from tests.unit.store.store_places import DATABASES, fresh_store_url
from tests.unit.store.store_samples import NOON, a_fit, a_pattern, a_run

pytestmark = pytest.mark.usefixtures("subprocesses")

OPENER = """
import asyncio, sys
from store.session import open_store

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with await open_store(sys.argv[1]) as store, store.reading() as tx:
        print(len(await tx.runs.newest()), flush=True)

asyncio.run(main())
"""

# Prints the node of a call after its transactions have committed.
WRITER = """
import asyncio, sys
from store.records import CallKind, CallOutcome, CallRecord, Status
from store.session import open_store

async def main(url, run_id, first, num_calls):
    async with await open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for node in range(first, first + num_calls):
            async with store.transaction() as tx:
                prompt = await tx.payloads.put(b"prompt %d" % (node % 7))
                call = CallRecord(
                    run_id=run_id, node=node, kind=CallKind.LLM, identity="demo", step_path="s",
                    stage=0, started_s=0.0, prompt_payload=prompt,
                )
                await tx.calls.start(call, parents=[node - 1] if node > first else [])
            async with store.transaction() as tx:
                output = await tx.payloads.put(b"answer %d " % node * 50)
                await tx.calls.finish(
                    run_id, node,
                    CallOutcome(Status.COMPLETED, finished_s=1.0, output_payload=output),
                )
            print(node, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""

# Updates the reuse counts of some patterns again and again, in the given order.
USER = """
import asyncio, sys
from datetime import UTC, datetime
from store.session import open_store

async def main(url, ids):
    async with await open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(100):
            async with store.transaction() as tx:
                add_one = lambda _, uses, __: uses + 1
                await tx.patterns.update_uses(ids, add_one, at=datetime.now(UTC))
        print("done", flush=True)

asyncio.run(main(sys.argv[1], [int(id_) for id_ in sys.argv[2:]]))
"""

# Replaces the library and its fit, and then waits for ever within that transaction.
FITTER = """
import asyncio, sys
from dataclasses import replace
from store.session import open_store

async def main(url, pattern_id):
    async with await open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        async with store.transaction() as tx:
            await tx.patterns.set_library("research", {pattern_id: 9.0}, up_to=pattern_id)
            await tx.patterns.delete(range(pattern_id))
            fit = await tx.fits.get("research")
            await tx.fits.put(replace(fit, last_pattern_id=pattern_id))
            print("fitted", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store_url(request.param, tmp_path) as url:
        yield url


class Process:
    """A Python process that waits after its start until `go` is called."""

    def __init__(self, program: str, *arguments: object) -> None:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.read_line() == "ready"

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def read_line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def kill(self) -> list[str]:
        """Kill it at once; returns the lines that were not read yet."""
        self.popen.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> list[str]:
        """Wait for its end; returns the lines that were not read yet."""
        rest, _ = self.popen.communicate()
        # A last line without a newline was cut off by the kill.
        return rest.split("\n")[:-1]


async def add_runs(store_url: str, *run_ids: str) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        for run_id in run_ids:
            await tx.runs.add(a_run(run_id))


async def assert_holds(store: Store, run_id: str, nodes: set[int]) -> None:
    """Check that the calls of these nodes are stored and ended, with their edges and payloads."""
    async with store.reading() as tx:
        calls = {call.node: call for call in await tx.calls.of_run(run_id)}
        edges = {(edge.parent, edge.child) for edge in await tx.calls.edges_of_run(run_id)}
        assert nodes <= set(calls)
        for node in nodes:
            assert calls[node].output_payload is not None
            assert await tx.payloads.get(calls[node].output_payload or "") == (
                b"answer %d " % node * 50
            )
        for node in set(calls) - {min(calls, default=0)}:
            assert (node - 1, node) in edges or node % 1000 == 0


async def test_processes_that_open_a_new_store_at_the_same_time_all_succeed(
    store_url: str,
) -> None:
    processes = [Process(OPENER, store_url) for _ in range(4)]
    for process in processes:
        process.go()
    lines = [process.end() for process in processes]
    assert lines == [["0"]] * 4
    assert {process.popen.returncode for process in processes} == {0}


async def test_concurrent_writes_to_different_runs_lose_nothing(store_url: str) -> None:
    await add_runs(store_url, "run-0", "run-1")
    processes = [Process(WRITER, store_url, f"run-{i}", 0, 200) for i in range(2)]
    for process in processes:
        process.go()
    for process in processes:
        assert process.end() == [str(node) for node in range(200)]
        assert process.popen.returncode == 0
    async with await open_store(store_url) as store:
        for run_id in ("run-0", "run-1"):
            await assert_holds(store, run_id, set(range(200)))


async def test_concurrent_writes_to_one_run_lose_nothing(store_url: str) -> None:
    await add_runs(store_url, "run-0")
    processes = [Process(WRITER, store_url, "run-0", 1000 * i, 50) for i in range(3)]
    for process in processes:
        process.go()
    for process in processes:
        assert len(process.end()) == 50
    async with await open_store(store_url) as store:
        await assert_holds(
            store, "run-0", {1000 * i + node for i in range(3) for node in range(50)}
        )


async def test_committed_transactions_survive_kill_9(store_url: str) -> None:
    """Processes are killed one after another at random moments, in the same store."""
    await add_runs(store_url, "run-0")
    generator = random.Random(0)
    committed: set[int] = set()
    for process in range(8):
        writer = Process(WRITER, store_url, "run-0", 1000 * process, 1000)
        writer.go()
        lines = [writer.read_line() for _ in range(generator.randrange(1, 40))]
        time.sleep(generator.uniform(0, 0.01))  # noqa: ASYNC251 - kill between two lines, too
        lines += writer.kill()
        committed |= {int(line) for line in lines}
        async with await open_store(store_url) as store:
            await assert_holds(store, "run-0", committed)


async def test_a_process_killed_during_a_migration_leaves_the_store_usable(
    store_url: str,
) -> None:
    generator = random.Random(0)
    for _ in range(6):
        opener = Process(OPENER, store_url)
        opener.go()
        time.sleep(generator.uniform(0.02, 0.4))  # noqa: ASYNC251 - somewhere in the migration
        opener.kill()
    await add_runs(store_url, "run-0")
    async with await open_store(store_url) as store, store.reading() as tx:
        assert await tx.runs.get("run-0") == a_run("run-0")


async def test_concurrent_updates_of_reuse_counts_by_processes_lose_no_use(
    store_url: str,
) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        ids = [await tx.patterns.add(a_pattern()) for _ in range(3)]
    processes = [Process(USER, store_url, *order) for order in (ids[:2], ids[1::-1], ids[::-2])]
    for process in processes:
        process.go()
    assert [process.end() for process in processes] == [["done"]] * 3
    async with await open_store(store_url) as store, store.reading() as tx:
        patterns = await tx.patterns.get(ids)
    assert [pattern.uses for pattern in patterns] == [300.0, 200.0, 100.0]
    assert all(pattern.used_at is not None and pattern.used_at > NOON for pattern in patterns)


async def test_a_process_killed_before_it_commits_a_library_does_not_replace_the_previous_one(
    store_url: str,
) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        ids = [await tx.patterns.add(a_pattern(weight=weight)) for weight in (3.0, 0.0, 1.0)]
        await tx.fits.put(a_fit())
    fitter = Process(FITTER, store_url, ids[-1])
    fitter.go()
    assert fitter.read_line() == "fitted"
    fitter.kill()
    async with await open_store(store_url) as store, store.transaction() as tx:
        left = await tx.patterns.get(ids)
        assert [pattern.weight for pattern in left] == [3.0, 0.0, 1.0]
        assert await tx.fits.get("research") == a_fit()
        # The killed process holds no lock.
        await tx.patterns.set_library("research", {}, up_to=ids[-1])
