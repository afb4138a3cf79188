"""Plain functions run in threads of their own, which block nothing else."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Runtime, WrongLoop, flow, map, step, tool  # noqa: A004
from orchestrator.execution.threads import MAX_THREADS, run_in_thread
from orchestrator.langgraph.event_loops import run_on_loop
from tests.places import ROOT

NUM_PARALLEL = 100  # more than any default executor has

city: ContextVar[str] = ContextVar("city", default="nowhere")


async def test_as_many_plain_steps_run_in_parallel_as_the_concurrency_allows(
    runtime: Runtime,
) -> None:
    all_of_them = threading.Barrier(NUM_PARALLEL, timeout=30)

    @step
    def meet(number: int) -> int:
        all_of_them.wait()
        return number

    @flow
    async def meeting() -> tuple[int, ...]:
        return await map(meet, range(NUM_PARALLEL), concurrency=NUM_PARALLEL)

    assert await meeting() == tuple(range(NUM_PARALLEL))


async def test_plain_functions_that_block_do_not_use_the_event_loops_thread_pool() -> None:
    release = threading.Event()
    blocked = [
        asyncio.create_task(run_in_thread(release.wait, name="blocked"))
        for _ in range(NUM_PARALLEL)
    ]
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(lambda: "done") == "done"
    release.set()
    assert await asyncio.gather(*blocked) == [True] * NUM_PARALLEL


async def test_an_abandoned_thread_takes_no_slot() -> None:
    release = threading.Event()
    try:
        abandoned = [
            asyncio.create_task(run_in_thread(release.wait, name="abandoned"))
            for _ in range(MAX_THREADS)
        ]
        await asyncio.sleep(0)
        for task in abandoned:
            task.cancel()
        await asyncio.gather(*abandoned, return_exceptions=True)
        async with asyncio.timeout(30):
            assert await run_in_thread(lambda: "done", name="next") == "done"
    finally:
        release.set()


async def test_more_functions_than_slots_all_complete_within_the_limit() -> None:
    running: set[int] = set()
    num_running: list[int] = []

    def count() -> None:
        running.add(threading.get_ident())
        num_running.append(len(running))
        running.discard(threading.get_ident())

    await asyncio.gather(*(run_in_thread(count, name="count") for _ in range(2 * MAX_THREADS)))
    assert len(num_running) == 2 * MAX_THREADS
    assert max(num_running) <= MAX_THREADS


def test_a_closed_loop_is_not_kept_alive() -> None:
    async def crowd() -> weakref.ref[asyncio.AbstractEventLoop]:
        works = (run_in_thread(lambda: None, name="work") for _ in range(MAX_THREADS + 1))
        await asyncio.gather(*works)
        return weakref.ref(asyncio.get_running_loop())

    first = asyncio.run(crowd())
    asyncio.run(crowd())
    gc.collect()
    assert first() is None


async def test_functions_that_hold_all_slots_can_run_further_functions_within_them() -> None:
    loop = asyncio.get_running_loop()
    all_of_them = threading.Barrier(MAX_THREADS, timeout=30)

    def outer() -> str:
        all_of_them.wait()
        return run_on_loop(loop, "inner", lambda: run_in_thread(lambda: "done", name="inner"))

    works = (run_in_thread(outer, name="outer") for _ in range(MAX_THREADS))
    assert set(await asyncio.gather(*works)) == {"done"}


async def test_a_thread_has_its_callers_context_and_its_error_is_raised_in_the_caller() -> None:
    def look() -> str:
        return city.get()

    def stop() -> None:
        raise StopIteration  # a coroutine cannot raise it

    city.set("Ulm")
    assert await run_in_thread(look, name="look") == "Ulm"
    with pytest.raises(RuntimeError, match="StopIteration"):
        await run_in_thread(stop, name="stop")


ABANDONS_A_THREAD = """
import asyncio, threading
from orchestrator import DeadlineExceeded, flow, step
from orchestrator.testing import ScriptedEngine
from orchestrator.wiring import open_runtime
from orchestrator.settings import Settings

@step
def hang() -> None:
    threading.Event().wait()

@flow(deadline="100ms")
async def hangs() -> None:
    await hang()

async def main() -> None:
    settings = Settings(store="sqlite:///store.db", fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(lambda _: "")) as runtime:
        try:
            await runtime.run(hangs)
        except DeadlineExceeded:
            print("abandoned")

asyncio.run(main())
"""


@pytest.mark.usefixtures("subprocesses")
def test_an_abandoned_thread_does_not_keep_the_process_from_exiting(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ABANDONS_A_THREAD],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "abandoned\n"), ended.stderr


def yields() -> Iterator[int]:
    yield 1


async def yields_async() -> AsyncIterator[int]:
    yield 1


class Yielding:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("body", [yields, yields_async, Yielding()])
@pytest.mark.parametrize("decorate", [step, tool, flow, lambda body: flow(wrap_up=body)])
def test_decorating_a_generator_is_refused(decorate: Callable[[Any], Any], body: Any) -> None:
    with pytest.raises(TypeError, match="in a list, and return the list"):
        decorate(body)


@pytest.mark.parametrize("decorate", [flow, step, tool])
async def test_asyncio_run_within_a_plain_step_raises_wrong_loop(
    runtime: Runtime, decorate: Callable[..., Any]
) -> None:
    @decorate
    async def inner() -> str:
        return "done"

    @step
    def outer() -> str:
        return asyncio.run(inner())

    async def body() -> str:
        return await outer()

    with pytest.raises(WrongLoop, match=r"inner\(\) belongs to its run's event loop"):
        await runtime.run(flow(body))
