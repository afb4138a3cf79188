"""Queues: claims a second, and runs that lose their workers.

    python -m benchmarks.queues --store postgresql://... [--restart COMMAND] [--runs 500]
        [--workers 3] [--kill-every 10] [--lease 10] [--claims 6000] [--json]

First processes claim and complete runs as fast as they can: a claim and the record of an end, each
a transaction. Then workers execute runs of mixed deadlines in two queues with limits, while one of
the workers is killed every few seconds and COMMAND restarts the database once. Counted are runs
that did not complete exactly once (by a witness, a file of external effects), runs that were
claimed before one of their queue that was due earlier, and moments at which a limit was exceeded.
The store must be one for this alone: its runs stay.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.command import say
from benchmarks.queue_worker import job
from orchestrator import Settings, open_runtime
from orchestrator.testing import ScriptedEngine
from store.errors import StoreError
from store.queue.records import Claim, Claimant
from store.records import NEVER_DUE, RunOutcome, RunRecord, Status
from store.session import Store, open_store

QUEUES = {"first": (7, 3), "second": (5, 2)}
"""Queue -> the most runs in progress at once, in all and of one user."""

USERS = ("ann", "ben", "cem")
CLAIMED_AT_ONCE_S = 0.25
"""Two claims of different workers within this time have no order: each commits after its moment."""

GIVE_UP_S = 900.0


@dataclass(frozen=True, slots=True)
class Claims:
    """What processes claimed in a time.

    Attributes:
        batch: runs that a process claims at once.
        per_s: claims, each with its completion, a second.
        num_twice: runs that were claimed more than once.
    """

    processes: int
    batch: int
    num: int
    seconds: float
    per_s: float
    num_twice: int


@dataclass(frozen=True, slots=True)
class Kills:
    """What became of runs that lost their workers.

    Attributes:
        num_lost: runs that did not complete.
        num_twice: runs with more than one line of the witness, or none.
        num_out_of_order: first claims before that of a run of the queue that was due earlier.
        num_over_limit: moments, of `num_looks`, at which a limit was exceeded.
        num_taken_again: runs that more than one worker had.
    """

    num_runs: int
    seconds: float
    num_kills: int
    num_restarts: int
    num_lost: int
    num_twice: int
    num_out_of_order: int
    num_over_limit: int
    num_looks: int
    num_taken_again: int

    @property
    def is_ok(self) -> bool:
        """Whether nothing went wrong."""
        wrong = (self.num_lost, self.num_twice, self.num_out_of_order, self.num_over_limit)
        return not any(wrong)


async def measure_claims(url: str, *, num: int, processes: int, batch: int) -> Claims:
    """Let processes claim and complete runs as fast as they can."""
    queue = f"claims-{time.time_ns()}"
    async with await open_store(url) as store:
        for start in range(0, num, 500):
            async with store.transaction() as tx:
                for number in range(start, min(start + 500, num)):
                    await tx.waiting.add(_waiting(queue, f"{queue}-{number}"))
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(processes + 1)
    results: multiprocessing.Queue[list[str]] = context.Queue()
    workers = [
        context.Process(target=_claim_all, args=(url, queue, batch, begin, results))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    begin.wait()
    began_s = time.monotonic()
    claimed = Counter(itertools.chain(*(results.get() for _ in workers)))
    seconds = time.monotonic() - began_s
    for worker in workers:
        worker.join()
    assert len(claimed) == num, f"{num - len(claimed)} runs were not claimed"
    twice = sum(times > 1 for times in claimed.values())
    return Claims(processes, batch, num, round(seconds, 2), round(num / seconds, 1), twice)


def _waiting(queue: str, run_id: str) -> RunRecord:
    now = datetime.now(UTC)
    due_at = now + timedelta(seconds=random.uniform(60, 3600))
    return RunRecord(
        id=run_id,
        flow="job",
        started_at=now,
        status=Status.QUEUED,
        queue=queue,
        due_at=random.choice((due_at, NEVER_DUE)),
        code_version="v1",
    )


def _claim_all(url: str, queue: str, batch: int, begin: object, results: object) -> None:
    """A process that claims until nothing is left."""
    claim = Claim(Claimant(os.getpid(), "here", f"{os.getpid()}"), [queue], {"job": "v1"}, 60.0)

    async def work() -> list[str]:
        claimed: list[str] = []
        async with await open_store(url) as store:
            async with store.reading() as tx:
                await tx.waiting.get(queue)  # connects
            begin.wait()  # type: ignore[attr-defined]
            while taken := await _take(store, claim, batch):
                for run in taken:
                    claimed.append(run.id)
                    outcome = RunOutcome(Status.COMPLETED, datetime.now(UTC), 0.0)
                    async with store.transaction() as tx:
                        await tx.runs.finish(run.id, outcome, attempts=run.attempts)
        return claimed

    results.put(asyncio.run(work()))  # type: ignore[attr-defined]


async def _take(store: Store, claim: Claim, num: int) -> list[RunRecord]:
    async with store.transaction() as tx:
        return await tx.claims.take(claim, num=num, wall=datetime.now(UTC))


class Workers:
    """Worker processes that are killed and replaced."""

    def __init__(self, url: str, *, num: int, lease_s: float, log: Path) -> None:
        self.num_kills = 0
        self._command = [sys.executable, "-m", "benchmarks.queue_worker", url, "4", f"{lease_s}"]
        self._command += QUEUES
        self._log = log.open("w")
        self._processes = [self._started() for _ in range(num)]

    def kill_one(self) -> None:
        """Kill a worker and start another one in its place."""
        number = self.num_kills % len(self._processes)
        killed = self._processes[number]
        killed.kill()
        killed.wait()
        self.num_kills += 1
        self._processes[number] = self._started()

    def stop(self) -> None:
        """End all of them by SIGTERM."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._log.close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=self._log, stderr=self._log)


async def kill_workers(
    url: str,
    folder: Path,
    *,
    num_runs: int = 500,
    num_workers: int = 3,
    kill_every_s: float = 10.0,
    lease_s: float = 10.0,
    run_s: float = 2.0,
    restart: Sequence[str] | str | None = None,
    seed: int = 0,
) -> Kills:
    """Execute runs while their workers are killed.

    Args:
        folder: for the witness's file and the workers' log.
        run_s: how long a run takes on average.
        restart: a shell command that restarts the database, or the words of a command; done once.
    """
    witness = folder / "witness"
    witness.touch()
    run_ids = await _submit(url, witness, num_runs, run_s, random.Random(seed))
    workers = Workers(url, num=num_workers, lease_s=lease_s, log=folder / "workers.log")
    began_s = time.monotonic()
    num_over, num_looks, num_restarts, left = 0, 0, 0, num_runs
    try:
        async with await open_store(url) as store:
            while left:
                elapsed_s = time.monotonic() - began_s
                assert elapsed_s < GIVE_UP_S, f"{left} runs are left: {folder / 'workers.log'}"
                if elapsed_s > (workers.num_kills + 1) * kill_every_s:
                    workers.kill_one()
                if restart and not num_restarts and elapsed_s > 1.5 * kill_every_s:
                    shell = isinstance(restart, str)
                    await asyncio.to_thread(subprocess.run, restart, shell=shell, check=True)
                    num_restarts += 1
                with suppress(StoreError):  # the database restarts
                    runs = await _runs_of(store, run_ids)
                    num_over += _is_over_limit(runs)
                    num_looks += 1
                    left = sum(run.status in (Status.QUEUED, Status.RUNNING) for run in runs)
                await asyncio.sleep(0.05)
            runs = await _runs_of(store, run_ids)
    finally:
        workers.stop()
    lines = Counter(witness.read_text().split())
    return Kills(
        num_runs=num_runs,
        seconds=round(time.monotonic() - began_s, 1),
        num_kills=workers.num_kills,
        num_restarts=num_restarts,
        num_lost=sum(run.status is not Status.COMPLETED for run in runs),
        num_twice=sum(lines[run.id] != 1 for run in runs),
        num_out_of_order=_out_of_order(runs),
        num_over_limit=num_over,
        num_looks=num_looks,
        num_taken_again=sum(run.attempts > 1 for run in runs),
    )


async def _submit(
    url: str, witness: Path, num: int, run_s: float, numbers: random.Random
) -> set[str]:
    """Submit runs with deadlines between 10 and 60 minutes, in a random order, then open queues."""
    prefix = f"k{time.time_ns():x}"
    async with await open_store(url) as store, store.transaction() as tx:
        for queue, (most, most_of_user) in QUEUES.items():
            await tx.waiting.change(
                queue, max_running=most, max_running_of_user=most_of_user, is_paused=True
            )
    settings = Settings(store=url, fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine("so")) as runtime:
        for number in range(num):
            run_id = f"{prefix}-{number}"
            flow = job.options(
                run_id=run_id, deadline=numbers.uniform(600, 3600), user=numbers.choice(USERS)
            ).queued(numbers.choice(list(QUEUES)), attempts=50)
            await runtime.submit(flow, run_id, str(witness), numbers.uniform(0.5, 1.5) * run_s)
        async with runtime.store.transaction() as tx:
            for queue in QUEUES:
                await tx.waiting.change(queue, is_paused=False)
    return {f"{prefix}-{number}" for number in range(num)}


async def _runs_of(store: Store, run_ids: set[str]) -> list[RunRecord]:
    async with store.reading() as tx:
        return [run for run in await tx.runs.newest(flow="job") if run.id in run_ids]


def _is_over_limit(runs: Sequence[RunRecord]) -> bool:
    running = [run for run in runs if run.status is Status.RUNNING]
    of_queues = Counter(run.queue for run in running)
    of_users = Counter((run.queue, run.slo_user) for run in running)
    return any(
        of_queues[queue] > most or any(of_users[queue, user] > most_of_user for user in USERS)
        for queue, (most, most_of_user) in QUEUES.items()
    )


def _out_of_order(runs: Sequence[RunRecord]) -> int:
    """Runs that were claimed before one of the same queue and user that was due earlier.

    A user's limit may let another user's run go first. Runs that a worker had lost are left out:
    their first claim is not recorded any more.
    """
    wrong = 0
    once = [run for run in runs if run.attempts == 1]
    for queue, user in itertools.product(QUEUES, USERS):
        mine = [run for run in once if (run.queue, run.slo_user) == (queue, user)]
        latest: datetime | None = None
        for run in sorted(mine, key=lambda each: each.due_at or NEVER_DUE):
            assert run.claimed_at is not None
            if latest is not None and (latest - run.claimed_at).total_seconds() > CLAIMED_AT_ONCE_S:
                wrong += 1
            latest = run.claimed_at if latest is None else max(latest, run.claimed_at)
    return wrong


def main() -> None:
    """Measure, and print what was found."""
    options = _parser().parse_args()
    store = options.store
    claims = [
        asyncio.run(
            measure_claims(store, num=options.claims, processes=options.workers, batch=batch)
        )
        for batch in (1, 4)
        if options.claims
    ]
    for each in claims:
        say(f"{each.per_s:,.0f} claims a second, {each.batch} at once: {each}")
    kills = None
    if options.runs:
        with tempfile.TemporaryDirectory(prefix="queues-") as folder:
            kills = asyncio.run(
                kill_workers(
                    store,
                    Path(folder),
                    num_runs=options.runs,
                    num_workers=options.workers,
                    kill_every_s=options.kill_every,
                    lease_s=options.lease,
                    run_s=options.run_s,
                    restart=options.restart,
                )
            )
        say(f"{'ok' if kills.is_ok else 'WRONG'}: {kills}")
    if options.json:
        document = {
            "claims": [asdict(each) for each in claims],
            "kills": None if kills is None else asdict(kills) | {"is_ok": kills.is_ok},
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.exit(0 if kills is None or kills.is_ok else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True, metavar="URL")
    parser.add_argument("--restart", metavar="COMMAND", help="restarts the database")
    parser.add_argument("--runs", type=int, default=500, help="0: no workers are killed")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="S")
    parser.add_argument("--lease", type=float, default=10.0, metavar="S")
    parser.add_argument("--run-s", type=float, default=2.0, metavar="S")
    parser.add_argument("--claims", type=int, default=6000, help="0: claims are not measured")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
