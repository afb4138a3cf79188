"""How engines start, end and fail, each in turn in one process; prints what came of it as JSON.

Run by test_lifecycle.py in a process of its own: a process takes one engine at a time, and these
end badly on purpose.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.setup.config import EngineConfig
from serving.errors import ServingError
from serving.generation import GenerationRequest
from serving.view import Plan, StepView

CONFIG = EngineConfig(slots=4, max_model_tokens=512, kv_cache_bytes=1 << 20)

Outcome = dict[str, Any]
scenarios: dict[str, Callable[[], Awaitable[Outcome]]] = {}


def scenario(work: Callable[[], Awaitable[Outcome]]) -> Callable[[], Awaitable[Outcome]]:
    scenarios[work.__name__] = work
    return work


async def outcome(work: Awaitable[Any]) -> list[str]:
    """What a caller gets: the kind of answer and what it says."""
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
    """Callers with long answers, all of them already in the engine."""
    tasks = [asyncio.create_task(outcome(call(engine, 500))) for _ in range(count)]
    while await engine.call(lambda llm: len(scheduler_of(llm).requests)) < count:
        pass
    return tasks


@scenario
async def work_that_ends_the_engine() -> Outcome:
    """Whoever hands it in is told, as is everybody else."""
    engine = EmbeddedEngine(CONFIG)
    waiting = await busy(engine, 2)

    def leave(_: Any) -> None:
        raise SystemExit("enough")

    told = "nothing"
    try:
        await engine.call(leave)
    except SystemExit:
        told = "SystemExit"
    waited = [await task for task in waiting]
    await engine.close()
    return {"told": told, "waited": waited}


@scenario
async def a_folder_that_is_not_there() -> Outcome:
    engine = EmbeddedEngine(replace(CONFIG, model="/no/such/model"))
    found = {"first": await outcome(engine.start()), "again": await outcome(call(engine))}
    await engine.close()
    return found


@scenario
async def a_folder_that_is_no_model() -> Outcome:
    engine = EmbeddedEngine(replace(CONFIG, model=str(Path(__file__).parent)))
    return {"first": await outcome(engine.start())}


@scenario
async def vllm_itself_cannot_load() -> Outcome:
    """The KV cache holds no request of full length: found late in loading."""
    engine = EmbeddedEngine(EngineConfig(kv_cache_bytes=1 << 20))
    return {"first": await outcome(engine.start())}


@scenario
async def a_caller_leaves_while_the_model_loads() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    leaver = asyncio.create_task(outcome(engine.start()))
    generator = asyncio.create_task(outcome(call(engine)))
    stayer = asyncio.create_task(outcome(call(engine)))
    await asyncio.sleep(0.05)
    for task in (leaver, generator):
        task.cancel()
    found = {
        "leaver": await leaver,
        "generator": await generator,
        "stayer": await stayer,
        "second engine": await outcome(EmbeddedEngine(CONFIG).start()),
    }
    await engine.close()
    return found


@scenario
async def closing_under_load() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    await engine.start()
    waiting = await busy(engine, 6)
    racer = asyncio.create_task(outcome(call(engine, 500)))
    closing = [asyncio.create_task(engine.close()) for _ in range(2)]
    await asyncio.sleep(0)
    late = await outcome(call(engine))
    await asyncio.gather(*closing)
    return {
        "waiting": [await task for task in waiting],
        "racer": await racer,
        "late": late,
        "later": await outcome(call(engine)),
        "call": await outcome(engine.call(lambda llm: None)),
        "start": await outcome(engine.start()),
        "close again": await outcome(engine.close()),
    }


@scenario
async def closing_while_the_model_loads() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    caller = asyncio.create_task(outcome(call(engine)))
    await asyncio.sleep(0.05)
    await engine.close()
    return {"caller": await caller, "later": await outcome(call(engine))}


@scenario
async def the_engines_own_loop_fails() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    await engine.start()
    waiting = await busy(engine, 6)

    def broken(view: StepView) -> Plan:
        raise RuntimeError("the policy is broken")

    def sabotage(llm: Any) -> None:
        scheduler: Any = scheduler_of(llm)
        scheduler.planner.policy = broken
        scheduler.planner.plan_due = True

    await engine.call(sabotage)
    found: Outcome = {"waiting": [await task for task in waiting]}
    found |= {"later": await outcome(call(engine)), "start": await outcome(engine.start())}
    await engine.close()
    return found


@scenario
async def an_unsound_plan() -> Outcome:
    """A plan that forgets a request is our bug: it ends the engine, and says which policy."""
    engine = EmbeddedEngine(CONFIG)
    await engine.start()

    def forget(llm: Any) -> None:
        scheduler: Any = scheduler_of(llm)
        scheduler.planner.policy = lambda view: Plan(order=(), run=frozenset())

    await engine.call(forget)
    found = {"caller": await outcome(call(engine))}
    await engine.close()
    return found


@scenario
async def after_all_that_another_engine() -> Outcome:
    engine = EmbeddedEngine(CONFIG)
    found = {"caller": await outcome(call(engine))}
    await engine.close()
    return found


async def main() -> None:
    found = {}
    for name, work in scenarios.items():
        async with asyncio.timeout(120):
            found[name] = await work()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main())
