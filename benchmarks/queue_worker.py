"""A worker process of `benchmarks.queues`, on an engine that is never asked.

    python -m benchmarks.queue_worker STORE CONCURRENCY LEASE_S QUEUE...

It waits for its lease to be renewed as any worker, prints "working", and ends at SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from benchmarks.command import say
from orchestrator import Happened, Settings, Worker, flow, open_runtime, step, tool
from orchestrator.testing import ScriptedEngine


async def look_up(witness: str, run: str) -> Happened | None:
    """Whether a run's line is in the witness's file."""
    lines = await asyncio.to_thread(Path(witness).read_text)
    return Happened(None) if run in lines.split() else None


@tool(reconcile=look_up)
async def testify(witness: str, run: str) -> None:
    """Add a run's line to the witness's file: an effect that must not happen twice."""

    def append() -> None:
        with Path(witness).open("a") as file:
            file.write(f"{run}\n")

    await asyncio.to_thread(append)


@step
async def spend(seconds: float) -> None:
    """Take time, as a call of an LLM would."""
    await asyncio.sleep(seconds)


@flow(on_deadline="fail")
async def job(run: str, witness: str, seconds: float) -> str:
    """Two steps with an external effect in between."""
    await spend(seconds / 2)
    await testify(witness, run)
    await spend(seconds / 2)
    return run


async def main(store: str, concurrency: int, lease_s: float, queues: list[str]) -> None:
    """Work until SIGTERM."""
    settings = Settings(store=store, fit_every=0, lease_s=lease_s)
    async with open_runtime(settings, engine=ScriptedEngine("so")) as runtime:
        worker = Worker(runtime, [job], queues=queues, concurrency=concurrency)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        say("working")
        await worker.run(grace=0)


if __name__ == "__main__":
    _, store_, concurrency_, lease_, *queues_ = sys.argv
    asyncio.run(main(store_, int(concurrency_), float(lease_), queues_))
