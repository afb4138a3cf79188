"""The flows of the storage simulation: small ones, of each shape that recovery has to handle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from orchestrator import Happened, flow, gather, llm, random, step, tool
from orchestrator.testing import Scenario

world: list[str] = []
"""The effects on the outside world."""


@tool(effects="pure")
async def look(name: str) -> str:
    return f"seen {name}"


@tool(effects="external")
async def send(name: str) -> str:
    world.append(name)
    return f"sent {name}"


async def was_sent(name: str) -> Happened | None:
    return Happened(f"sent {name}") if name in world else None


@tool(effects="external", reconcile=was_sent)
async def send_once(name: str) -> str:
    world.append(name)
    return f"sent {name}"


@tool(effects="external")
def post(name: str) -> str:
    """A plain function, which runs in a thread."""
    world.append(name)
    return f"posted {name}"


@step
async def report(name: str) -> str:
    return await look(name)


@step
async def order(name: str) -> str:
    return f"{await look(name)}, {await send_once(name)}"


@flow
async def single(name: str) -> str:
    """One external effect."""
    return await send(name)


@flow
async def chain(name: str) -> list[str]:
    return [await look(name), await look("two"), await report("three")]


@flow
async def parallel(name: str) -> list[str]:
    """Two branches of one call each, then a call that depends on both."""
    return [*await gather(look(name), look("two")), await look("after")]


@flow
async def three_branches(name: str) -> list[str]:
    return list(await gather(look(name), look("two"), look("three")))


@flow
async def nested(name: str) -> list[str]:
    """Branches in a branch, and steps with calls within."""

    async def both() -> str:
        return ", ".join(await gather(report("two"), look("three")))

    return list(await gather(report(name), both()))


@flow
async def effects(name: str) -> list[str]:
    """External effects, of which nothing is known after a crash."""
    return [await look(name), await send(name), await post("letter"), await look("after")]


@flow
async def reconciled(name: str) -> list[str]:
    return [await send_once(name), *await gather(order("two"), send_once("three"))]


@flow
async def values(name: str) -> list[str]:
    """Values that would differ in each execution, and steps with them as arguments."""
    first = await look(f"{name} {random()}")
    second = await gather(look(f"{random()}"), report("two"))
    return [first[:4], *[each[:4] for each in second]]


@flow
async def persistent(name: str) -> list[str]:
    """Goes on after an error: a step that fails is tried once more."""

    async def tried(attempt: Callable[[], Any]) -> str:
        try:
            return str(await attempt())
        except Exception:
            return str(await attempt())

    chance = random()
    first = await tried(lambda: look(f"{name} {chance}"))
    second = await tried(lambda: report("two"))
    third = await look(f"{chance}")
    return [first[:4], second, third[:4]]


@flow
async def racing(name: str) -> list[str]:
    """Acts on the first of two tasks that ends, then on the other one."""
    tasks = {asyncio.create_task(look(each)) for each in (name, "two")}
    reports: list[str] = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        reports += [await report(task.result()) for task in done]
    return sorted(reports)


@flow
async def asked(name: str) -> list[str]:
    """LLM calls."""
    return [await llm(name), *await gather(llm("two"), look("three"))]


FLOWS = {
    each.name: each
    for each in (
        single,
        chain,
        parallel,
        three_branches,
        nested,
        effects,
        reconciled,
        values,
        persistent,
        racing,
        asked,
    )
}


def scenario_of(name: str) -> Scenario:
    """A flow of this module with its arguments and effects."""
    return Scenario(
        flow=FLOWS[name],
        args=("one",),
        effects=lambda: world,
        reset=world.clear,
        is_reconciled=name == "reconciled",
    )
