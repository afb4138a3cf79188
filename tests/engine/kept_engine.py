"""Flows without an open runtime on the real engine; prints what happened as JSON.

test_kept_engine.py runs it in a process of its own: these flows start and end the process's engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import warnings
from typing import Any

from orchestrator import flow, llm, llm_stream, open_runtime, read_settings
from orchestrator.events import RunFinished, TextGenerated
from serving.errors import EngineBusy

seen: dict[str, Any] = {}


@flow
async def short(topic: str) -> str:
    return await llm(topic, max_tokens=3)


@flow
async def long(topic: str) -> str:
    return await llm(topic, max_tokens=1500)


@flow
async def streamed(topic: str) -> list[str]:
    return [piece async for piece in llm_stream(topic, max_tokens=20, seed=1, temperature=0.0)]


@flow
async def whole(topic: str) -> str:
    return await llm(topic, max_tokens=20, seed=1, temperature=0.0)


@flow
async def left(topic: str) -> str:
    async for piece in llm_stream(topic, max_tokens=1500):
        return piece
    return ""


def engines() -> list[int | None]:
    return [thread.ident for thread in threading.enumerate() if thread.name == "engine"]


async def stays_open() -> None:
    await short("a")
    first = engines()
    await asyncio.gather(short("b"), short("c"))
    seen["the same engine"] = engines() == first != []

    pieces, text = await streamed("d"), await whole("d")
    seen["streamed"] = "".join(pieces) == text and len(pieces) > 3
    result = await left.run("e")
    seen["left"] = (bool(result.value), result.elapsed_s < (await long.run("f")).elapsed_s / 2)

    handle = await long.start("g")
    num_pieces = 0
    async for event in handle.events(text=True):
        num_pieces += isinstance(event, TextGenerated)
        if num_pieces == 20:
            await handle.cancel()
    seen["read until cancelled"] = (num_pieces >= 20, isinstance(event, RunFinished))


async def may_be_closed() -> None:
    await short("h")
    await asyncio.to_thread(asyncio.run, short("another thread's loop"))
    seen["makes way for another loop"] = len(engines()) == 0
    await short("i")
    handle = await long.start("in use")
    async for _ in handle.text():
        break
    try:
        await asyncio.to_thread(asyncio.run, short("j"))
    except EngineBusy:
        seen["busy while in use"] = True
    await handle.cancel()
    async with open_runtime(read_settings(slots=8), start=True) as runtime:
        seen["makes way for open_runtime"] = len(engines())
        await runtime.run(short, "k")
    os.environ["ORCHESTRATE_SLOTS"] = "4"
    await short("l")
    seen["other settings"] = len(engines())


def main() -> None:
    asyncio.run(stays_open())
    seen["after the loop"] = len(engines())
    asyncio.run(may_be_closed())
    seen["after the second loop"] = len(engines())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(short("m"))
    loop.close()
    seen["after a loop that was just closed"] = len(engines())
    asyncio.run(short("n"))
    seen["after the next loop"] = len(engines())
    dropped = asyncio.new_event_loop()
    dropped.run_until_complete(short("o"))  # the process ends with this engine
    sys.stdout.write(json.dumps(seen) + "\n")
    sys.stdout.flush()
    warnings.simplefilter("ignore", ResourceWarning)  # of that loop itself


if __name__ == "__main__":
    main()
