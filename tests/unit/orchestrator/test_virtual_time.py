"""The loop in virtual time: its clock stands still while a thread works for it."""

from __future__ import annotations

import asyncio
import time

from tests.unit.orchestrator.virtual_time import run_in_virtual_time


def test_no_virtual_time_passes_while_a_thread_works() -> None:
    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5.0):
            await asyncio.to_thread(time.sleep, 0.05)
        after_thread_s = loop.time()
        await asyncio.sleep(3600.0)
        return after_thread_s, loop.time()

    assert run_in_virtual_time(work()) == (0.0, 3600.0)
