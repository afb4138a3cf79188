"""Laws of queues, with real processes that claim at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.session import open_store
from tests.unit.store.queue_samples import a_queued_run
from tests.unit.store.store_places import DATABASES, fresh_store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

NUM_PROCESSES = 3

# Claims and completes runs until none is left; prints those it had, and the most in progress.
CLAIMER = """
import asyncio, sys
from datetime import UTC, datetime
from sqlalchemy import func, select
from store.models import Run
from store.queue.records import Claim, Claimant
from store.records import RunOutcome, Status
from store.session import open_store

async def main(url, number, num):
    claim = Claim(Claimant(number, "here", str(number)), ["default"], {"research": "v1"}, 60.0)
    async with await open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        idle = 0
        while idle < 20:
            async with store.transaction() as tx:
                taken = await tx.claims.take(claim, num=num, wall=datetime.now(UTC))
            async with store.reading() as tx:
                running = await tx.runs.newest(status=Status.RUNNING)
            print("progress", len(running), flush=True)
            idle = 0 if taken else idle + 1
            await asyncio.sleep(0.002 * (1 if taken else 5))
            for run in taken:
                print("ran", run.id, flush=True)
                done = RunOutcome(Status.COMPLETED, datetime.now(UTC), 1.0)
                async with store.transaction() as tx:
                    await tx.runs.finish(run.id, done, attempts=run.attempts)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store_url(request.param, tmp_path) as url:
        yield url


def claim_all(store_url: str, *, num: int) -> list[list[str]]:
    """Let several processes claim at the same time; the lines that each printed, as words."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, store_url, str(number), str(num)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, NUM_PROCESSES + 1)
    ]
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline().strip() == "ready"
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    outputs = [each.communicate(timeout=100)[0] for each in processes]
    assert [each.returncode for each in processes] == [0] * NUM_PROCESSES
    return [line.split() for output in outputs for line in output.splitlines()]


async def submit_runs(store_url: str, num: int, **limits: int) -> None:
    async with await open_store(store_url) as store, store.transaction() as tx:
        for number in range(num):
            await tx.waiting.add(a_queued_run(f"run-{number}", slo_user=f"user-{number % 2}"))
        if limits:
            await tx.waiting.change("default", **limits)


@pytest.mark.slow
async def test_of_several_claimants_exactly_one_gets_each_run(store_url: str) -> None:
    await submit_runs(store_url, 120)
    lines = claim_all(store_url, num=3)
    ran = Counter(words[1] for words in lines if words[0] == "ran")
    assert ran == {f"run-{number}": 1 for number in range(120)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "most"), [({"max_running": 3}, 3), ({"max_running_of_user": 1}, 2)]
)
async def test_limits_hold_however_many_claim_at_once(
    store_url: str, limits: dict[str, int], most: int
) -> None:
    await submit_runs(store_url, 60, **limits)
    lines = claim_all(store_url, num=4)
    assert sum(words[0] == "ran" for words in lines) == 60
    assert max(int(words[1]) for words in lines if words[0] == "progress") == most
