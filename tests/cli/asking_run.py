"""A process that runs a flow which asks how many.

Arguments: the store's URL, and "end" for a flow that ends with the answer; else it goes on.
"""

from __future__ import annotations

import asyncio
import sys

from orchestrator import Settings, flow, input_required, open_runtime
from orchestrator.testing import ScriptedEngine

RUN_ID = "asking"


@flow(name="asking")
async def asking(ends: bool) -> int:
    count = await input_required("how many?", schema=int)
    if not ends:
        await asyncio.sleep(3600)
    return count


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(store: str, ends: bool) -> None:
    settings = Settings(store=store, fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(lambda _: "so")) as runtime:
        say("ready")
        result = await runtime.run(asking.options(run_id=RUN_ID), ends)
        say(f"ended with {result.value}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:] == ["end"]))
