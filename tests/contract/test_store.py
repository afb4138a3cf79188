"""Laws of every store, with real processes: nothing acknowledged is ever lost."""

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

# Says each call on stdout only after its transaction ended: what it has said, is acknowledged.
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

# Uses two patterns again and again, in an order of its own.
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
                more = lambda _, uses, __: uses + 1
                await tx.patterns.update_uses(ids, more, at=datetime.now(UTC))
        print("done", flush=True)

asyncio.run(main(sys.argv[1], [int(id_) for id_ in sys.argv[2:]]))
"""

# Stays in the middle of a transaction that has replaced the library and its fit.
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
    """A Python process that waits at its start until it is told to go."""

    def __init__(self, program: str, *arguments: object) -> None:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.said() == "ready"

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def said(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def kill(self) -> list[str]:
        """Kill it at once; returns what it had said and nobody had read yet."""
        self.popen.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> list[str]:
        rest, _ = self.popen.communicate()
        # A last line without its end was not said yet.
        return rest.split("\n")[:-1]


async def prepared(store_url: str, *run_ids: str) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        for run_id in run_ids:
            await tx.runs.add(a_run(run_id))


async def assert_holds(store: Store, run_id: str, nodes: set[int]) -> None:
    """Every acknowledged call is there, ended, with its cause and its readable payloads."""
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


async def test_processes_that_open_a_fresh_store_at_once_all_succeed(store_url: str) -> None:
    processes = [Process(OPENER, store_url) for _ in range(4)]
    for process in processes:
        process.go()
    said = [process.end() for process in processes]
    assert said == [["0"]] * 4
    assert {process.popen.returncode for process in processes} == {0}


async def test_processes_that_write_at_once_lose_nothing(store_url: str) -> None:
    await prepared(store_url, "run-0", "run-1")
    processes = [Process(WRITER, store_url, f"run-{i}", 0, 200) for i in range(2)]
    for process in processes:
        process.go()
    for process in processes:
        assert process.end() == [str(node) for node in range(200)]
        assert process.popen.returncode == 0
    async with await open_store(store_url) as store:
        for run_id in ("run-0", "run-1"):
            await assert_holds(store, run_id, set(range(200)))


async def test_processes_that_write_one_run_lose_nothing(store_url: str) -> None:
    await prepared(store_url, "run-0")
    processes = [Process(WRITER, store_url, "run-0", 1000 * i, 50) for i in range(3)]
    for process in processes:
        process.go()
    for process in processes:
        assert len(process.end()) == 50
    async with await open_store(store_url) as store:
        await assert_holds(
            store, "run-0", {1000 * i + node for i in range(3) for node in range(50)}
        )


async def test_what_was_acknowledged_survives_kill_9(store_url: str) -> None:
    """Killed again and again at other moments, in the same store."""
    await prepared(store_url, "run-0")
    chance = random.Random(0)
    acknowledged: set[int] = set()
    for life in range(8):
        writer = Process(WRITER, store_url, "run-0", 1000 * life, 1000)
        writer.go()
        said = [writer.said() for _ in range(chance.randrange(1, 40))]
        time.sleep(chance.uniform(0, 0.01))  # noqa: ASYNC251 - die between two lines, too
        said += writer.kill()
        acknowledged |= {int(line) for line in said}
        async with await open_store(store_url) as store:
            await assert_holds(store, "run-0", acknowledged)


async def test_a_process_killed_while_it_prepares_the_store_leaves_it_usable(
    store_url: str,
) -> None:
    chance = random.Random(0)
    for _ in range(6):
        opener = Process(OPENER, store_url)
        opener.go()
        time.sleep(chance.uniform(0.02, 0.4))  # noqa: ASYNC251 - somewhere in the migration
        opener.kill()
    await prepared(store_url, "run-0")
    async with await open_store(store_url) as store, store.reading() as tx:
        assert await tx.runs.get("run-0") == a_run("run-0")


async def test_processes_that_use_patterns_at_once_lose_no_use(store_url: str) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        ids = [await tx.patterns.add(a_pattern()) for _ in range(3)]
    processes = [Process(USER, store_url, *order) for order in (ids[:2], ids[1::-1], ids[::-2])]
    for process in processes:
        process.go()
    assert [process.end() for process in processes] == [["done"]] * 3
    async with await open_store(store_url) as store, store.reading() as tx:
        found = await tx.patterns.get(ids)
    assert [pattern.uses for pattern in found] == [300.0, 200.0, 100.0]
    assert all(pattern.used_at is not None and pattern.used_at > NOON for pattern in found)


async def test_a_process_killed_before_it_commits_a_library_leaves_the_former_one(
    store_url: str,
) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        ids = [await tx.patterns.add(a_pattern(weight=weight)) for weight in (3.0, 0.0, 1.0)]
        await tx.fits.put(a_fit())
    fitter = Process(FITTER, store_url, ids[-1])
    fitter.go()
    assert fitter.said() == "fitted"
    fitter.kill()
    async with await open_store(store_url) as store, store.transaction() as tx:
        left = await tx.patterns.get(ids)
        assert [pattern.weight for pattern in left] == [3.0, 0.0, 1.0]
        assert await tx.fits.get("research") == a_fit()
        # Nor does the dead one hold any lock.
        await tx.patterns.set_library("research", {}, up_to=ids[-1])
