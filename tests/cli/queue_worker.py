"""A worker process on a scripted engine, with the flows of this file.

Arguments: the store's URL, the time for runs in progress after SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cli.work.queues.working import work
from orchestrator import Settings, flow
from orchestrator.testing import ScriptedEngine


@flow
async def shout(text: str) -> str:
    """Shout a text.

    Args:
        text: what to shout.
    """
    return text.upper()


@flow
async def doze(file: Path) -> None:
    """Say that it has begun, and sleep."""
    await asyncio.to_thread(file.write_text, "begun")
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(
        work(
            Settings(store=sys.argv[1], fit_every=0, lease_s=2),
            [__file__],
            queues=["default"],
            concurrency=2,
            any_version=False,
            grace=sys.argv[2],
            engine=ScriptedEngine("so"),
        )
    )
