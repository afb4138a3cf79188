"""Scenarios in which engines start, end and fail, one after another; prints outcomes as JSON.

test_lifecycle.py runs it in a process of its own: a process has one engine at a time, and these
fail on purpose.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.setup.config import EngineConfig
from serving.engine.setup.random_model import ensure_random_model
from serving.errors import ServingError
from serving.generation import GenerationRequest
from serving.slo import OnLate, Slo, SloKind
from serving.view import Plan, StepView

CONFIG = EngineConfig(slots=4, max_model_tokens=512, kv_cache_bytes=1 << 20)

Outcome = dict[str, Any]
scenarios: dict[str, Callable[[], Awaitable[Outcome]]] = {}


def scenario(work: Callable[[], Awaitable[Outcome]]) -> Callable[[], Awaitable[Outcome]]:
    scenarios[work.__name__] = work
    return work


async def outcome(work: Awaitable[Any]) -> list[str]:
    """The type of what a caller gets, and the message if it is an error."""
    try:
        answer = await work
    except ServingError as error:
        return [type(error).__name__, str(error)]
    except asyncio.CancelledError:
        return ["CancelledError", ""]
    return [type(answer).__name__, ""]


def call(engine: EmbeddedEngine, max_tokens: int = 4) -> Awaitable[Any]:
    return engine.generate(GenerationRequest(request_id="r", prompt="go", max_tokens=max_tokens))


async def busy(engine: EmbeddedEngine, count: int) -> list[asyncio.Task[list[str]]]:
    """Calls with long answers, all of them in the engine."""
    tasks = [asyncio.create_task(outcome(call(engine, 500))) for _ in range(count)]
    while await engine.call(lambda llm: len(scheduler_of(llm).requests)) < count:
        pass
    return tasks


@scenario
async def job_that_ends_the_engine() -> Outcome:
    """Its caller gets its exception, and the other calls get EngineDied."""
    engine = EmbeddedEngine(CONFIG)
    waiting = await busy(engine, 2)

    def end_thread(_: Any) -> None:
        raise SystemExit("enough")

    raised = "nothing"
    try:
        await engine.call(end_thread)
    except SystemExit:
        raised = "SystemExit"
    outcomes = [await task for task in waiting]
    await engine.close()
    return {"raised": raised, "waiting": outcomes}


@scenario
async def missing_folder() -> Outcome:
    engine = EmbeddedEngine(replace(CONFIG, model="/no/such/model"))
    outcomes = {"start": await outcome(engine.start()), "call": await outcome(call(engine))}
    await engine.close()
    return outcomes


@scenario
async def folder_without_a_model() -> Outcome:
    engine = EmbeddedEngine(replace(CONFIG, model=str(Path(__file__).parent)))
    return {"start": await outcome(engine.start())}


@scenario
async def too_small_kv_cache() -> Outcome:
    """The KV cache cannot hold a request of full length; vLLM detects it late in loading."""
    engine = EmbeddedEngine(EngineConfig(kv_cache_bytes=1 << 20))
    return {"start": await outcome(engine.start())}


@scenario
async def cancelling_while_the_model_loads() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    cancelled_start = asyncio.create_task(outcome(engine.start()))
    cancelled_call = asyncio.create_task(outcome(call(engine)))
    other_call = asyncio.create_task(outcome(call(engine)))
    await asyncio.sleep(0.05)
    for task in (cancelled_start, cancelled_call):
        task.cancel()
    outcomes = {
        "cancelled start": await cancelled_start,
        "cancelled call": await cancelled_call,
        "other call": await other_call,
        "second engine": await outcome(EmbeddedEngine(CONFIG).start()),
    }
    await engine.close()
    return outcomes


@scenario
async def closing_under_load() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    await engine.start()
    waiting = await busy(engine, 6)
    at_close = asyncio.create_task(outcome(call(engine, 500)))
    closing = [asyncio.create_task(engine.close()) for _ in range(2)]
    await asyncio.sleep(0)
    during_close = await outcome(call(engine))
    await asyncio.gather(*closing)
    return {
        "waiting": [await task for task in waiting],
        "at close": await at_close,
        "during close": during_close,
        "after close": await outcome(call(engine)),
        "job": await outcome(engine.call(lambda llm: None)),
        "start": await outcome(engine.start()),
        "close again": await outcome(engine.close()),
    }


@scenario
async def closing_while_the_model_loads() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    waiting = asyncio.create_task(outcome(call(engine)))
    await asyncio.sleep(0.05)
    await engine.close()
    return {"waiting": await waiting, "after close": await outcome(call(engine))}


@scenario
async def failing_policy() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    await engine.start()
    waiting = await busy(engine, 6)

    await engine.call(raise_once)
    outcomes: Outcome = {"waiting": [await task for task in waiting]}
    outcomes |= {"call": await outcome(call(engine)), "start": await outcome(engine.start())}
    await engine.close()
    return outcomes


@scenario
async def invalid_plan() -> Outcome:
    """A plan without a request of the view is a bug of the policy, so it ends the engine."""
    engine = EmbeddedEngine(CONFIG)
    await engine.start()

    def forget(llm: Any) -> None:
        scheduler: Any = scheduler_of(llm)
        scheduler.planner.policy = lambda view: Plan(order=(), run=frozenset())

    await engine.call(forget)
    outcomes = {"call": await outcome(call(engine))}
    await engine.close()
    return outcomes


def raise_once(llm: Any) -> None:
    """The engine's next plan raises an error; the next engine has a policy of its own."""
    scheduler: Any = scheduler_of(llm)

    def broken(view: StepView) -> Plan:
        raise RuntimeError("the policy is broken")

    scheduler.planner.policy = broken
    scheduler.planner.plan_due = True


@contextmanager
def new_cache() -> Iterator[None]:
    """A cache folder in which no scheduler has left anything."""
    models = ensure_random_model().parent
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, ORCHESTRATE_CACHE=folder):
        Path(folder, "models").symlink_to(models)
        yield


async def knows(engine: EmbeddedEngine, user: str) -> bool:
    """Whether the engine's scheduler has counted requests of this user."""

    def has_counted(llm: Any) -> bool:
        ledger = scheduler_of(llm).lifecycle.ledger
        return ledger.users.counters.knows(user, ledger.clock())

    return await engine.call(has_counted)


@scenario
async def engine_that_dies_once() -> Outcome:
    """It is started again; calls are submitted again, and a stream that has begun ends."""
    with new_cache():
        return await deaths()


async def deaths() -> Outcome:
    engine = EmbeddedEngine(replace(CONFIG, restarts=1, keep_scheduler_state=True))
    await engine.start()
    of_ann = GenerationRequest(request_id="a", prompt="go", max_tokens=4, slo=Slo(user="ann"))
    knew = [await knows(engine, "ann")]
    await engine.generate(of_ann)
    waiting = await busy(engine, 6)
    request = GenerationRequest(request_id="s", prompt="go", max_tokens=400)
    stream = engine.stream(request)
    await anext(stream)
    await engine.call(raise_once)

    async def rest() -> None:
        async for _ in stream:
            pass

    late = Slo(kind=SloKind.DEADLINE, deadline_s=0.01, on_late=OnLate.DROP)
    dropped = asyncio.create_task(outcome(engine.generate(replace(request, slo=late))))
    outcomes: Outcome = {
        "stream": await outcome(rest()),
        "late": await dropped,
        "waiting": [await task for task in waiting],
        "knew ann": [*knew, await knows(engine, "ann")],
    }
    await engine.call(raise_once)
    outcomes |= {
        "second death": await outcome(call(engine)),
        "start": await outcome(engine.start()),
    }
    await engine.close()
    return outcomes


@scenario
async def another_engine_after_all_others() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    outcomes = {"call": await outcome(call(engine))}
    await engine.close()
    return outcomes


async def main() -> None:
    outcomes = {}
    for name, work in scenarios.items():
        async with asyncio.timeout(120):
            outcomes[name] = await work()
    sys.stdout.write("\n" + json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main())
