"""A flow with an external effect, whose process kills itself at the moment that KILL names.

KILL="in the effect" python -m tests.recovery.effects_flow FOLDER
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from orchestrator import Settings, flow, open_runtime, step, tool
from orchestrator.testing import ScriptedEngine

RUN_ID = "the-run"
IN_EFFECT, AFTER_EFFECT = "in the effect", "after the effect"


def kill_if(moment: str) -> None:
    if os.environ.get("KILL") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


@tool
def send(folder: str) -> str:
    """An external effect: a line in a file."""
    with (Path(folder) / "sent").open("a") as file:
        file.write("sent\n")
    kill_if(IN_EFFECT)
    return "sent"


@step
async def note() -> str:
    kill_if(AFTER_EFFECT)
    return "noted"


@flow
async def effects(folder: str) -> list[str]:
    """Send, then take a step."""
    return [await send(folder), await note()]


async def run(folder: str) -> list[str]:
    """Start the run, or resume it."""
    settings = Settings(store=f"sqlite:///{folder}/runs.db", fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(lambda _: "")) as runtime:
        return (await runtime.run(effects.options(run_id=RUN_ID), folder)).value


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
